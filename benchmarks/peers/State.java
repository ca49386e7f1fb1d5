import java.nio.ByteBuffer;
import org.apache.datasketches.hll.HllSketch;
import org.apache.datasketches.kll.KllDoublesSketch;
import org.apache.datasketches.memory.Memory;

/** The reference view's answers for one hour and url: count, sum, distinct users and quantiles of ms, as sketches. */
public final class State {
    private static final int LG_K = 12;

    long count;
    double sum;
    HllSketch users = new HllSketch(LG_K);
    KllDoublesSketch latency = KllDoublesSketch.newHeapInstance();

    /** Adds one event. */
    public State add(Event event) {
        count++;
        sum += event.ms;
        users.update(event.user);
        latency.update(event.ms);
        return this;
    }

    /** The state as bytes: count, sum, the length of the first sketch, both sketches. */
    public byte[] toBytes() {
        byte[] distinct = users.toCompactByteArray();
        byte[] quantiles = latency.toByteArray();
        return ByteBuffer.allocate(20 + distinct.length + quantiles.length)
            .putLong(count).putDouble(sum).putInt(distinct.length).put(distinct).put(quantiles).array();
    }

    /** The inverse of `toBytes`. */
    public static State fromBytes(byte[] bytes) {
        ByteBuffer buffer = ByteBuffer.wrap(bytes);
        State state = new State();
        state.count = buffer.getLong();
        state.sum = buffer.getDouble();
        byte[] distinct = new byte[buffer.getInt()];
        buffer.get(distinct);
        byte[] quantiles = new byte[buffer.remaining()];
        buffer.get(quantiles);
        state.users = HllSketch.heapify(distinct);
        state.latency = KllDoublesSketch.heapify(Memory.wrap(quantiles));
        return state;
    }
}
