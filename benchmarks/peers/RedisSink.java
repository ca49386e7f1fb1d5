import java.io.BufferedInputStream;
import java.io.BufferedOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.PriorityQueue;

/**
 * Writes states into Redis, and after them how far each partition is: whoever reads the position finds the states.
 *
 * <p>One thread writes all that came while it waited for the last reply, each group once. So it writes one event at
 * once, and many events as one pipeline. Nothing is written twice by itself, and nothing is written atomically.
 */
public final class RedisSink {
    private static final String STATES = "peer:states";
    private static final String BEGAN = "peer:began";
    private static final String APPLIED = "peer:applied";

    private final Map<String, byte[]> states = new HashMap<>();
    private final Map<Integer, Frontier> frontiers = new HashMap<>();
    private final OutputStream out;
    private final InputStream in;
    private boolean hasNews;

    /** Connects, with REDIS_USER and REDIS_PASSWORD where these are set, and starts to write. */
    public RedisSink(String host, int port) throws IOException {
        Socket socket = new Socket(host, port);
        socket.setTcpNoDelay(true);
        out = new BufferedOutputStream(socket.getOutputStream(), 1 << 20);
        in = new BufferedInputStream(socket.getInputStream(), 1 << 16);
        String password = System.getenv("REDIS_PASSWORD");
        if (password != null) {
            command(bytes("AUTH"), bytes(System.getenv("REDIS_USER")), bytes(password));
            out.flush();
            readReply();
        }
        Thread writer = new Thread(this::write, "redis");
        writer.setDaemon(true);
        writer.start();
    }

    /** The first offset that will be put of a partition; later calls change nothing. */
    public synchronized void begin(int partition, long offset) {
        frontiers.computeIfAbsent(partition, ignored -> new Frontier(offset));
    }

    /** The state of a group, after an event of this location. */
    public synchronized void put(String key, byte[] state, int partition, long offset) {
        states.put(key, state);
        frontiers.get(partition).add(offset);
        hasNews = true;
        notify();
    }

    private void write() {
        try {
            while (true) {
                int replies = 0;
                for (byte[][] each : takeNews()) {
                    command(each);
                    replies++;
                }
                out.flush();
                for (; replies > 0; replies--) {
                    readReply();
                }
            }
        } catch (IOException | InterruptedException error) {
            error.printStackTrace();
            Runtime.getRuntime().halt(1);
        }
    }

    private synchronized List<byte[][]> takeNews() throws InterruptedException {
        while (!hasNews) {
            wait();
        }
        List<byte[][]> commands = new ArrayList<>(states.size() + 1);
        states.forEach((key, state) -> commands.add(new byte[][] {bytes("HSET"), bytes(STATES), bytes(key), state}));
        frontiers.forEach((partition, frontier) -> {
            commands.add(position(BEGAN, partition, frontier.start));
            commands.add(position(APPLIED, partition, frontier.next));
        });
        states.clear();
        hasNews = false;
        return commands;
    }

    private static byte[][] position(String hash, int partition, long offset) {
        return new byte[][] {
            bytes("HSET"), bytes(hash), bytes(Integer.toString(partition)), bytes(Long.toString(offset))
        };
    }

    private void command(byte[]... parts) throws IOException {
        out.write(bytes("*" + parts.length + "\r\n"));
        for (byte[] part : parts) {
            out.write(bytes("$" + part.length + "\r\n"));
            out.write(part);
            out.write('\r');
            out.write('\n');
        }
    }

    private void readReply() throws IOException {
        int first = in.read();
        StringBuilder line = new StringBuilder();
        for (int next = in.read(); next != '\n'; next = in.read()) {
            if (next < 0) {
                throw new IOException("Redis closed the connection.");
            }
            line.append((char) next);
        }
        if (first == '-') {
            throw new IOException("Redis replied: " + line);
        }
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    /** Up to where all offsets of a partition were put; tasks may put them out of order. */
    private static final class Frontier {
        private final PriorityQueue<Long> waiting = new PriorityQueue<>();
        private final long start;
        private long next;

        Frontier(long start) {
            this.start = start;
            next = start;
        }

        void add(long offset) {
            if (offset != next) {
                waiting.add(offset);
                return;
            }
            next++;
            while (!waiting.isEmpty() && waiting.peek() <= next) {
                next = Math.max(next, waiting.poll() + 1);
            }
        }
    }
}
