import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonToken;
import java.io.IOException;
import java.io.UncheckedIOException;

/** One hit, with its location in Kafka. */
public final class Event {
    private static final JsonFactory JSON = new JsonFactory();
    private static final int HOUR_LENGTH = "2026-01-01T00".length();

    public int partition;
    public long offset;
    public String hour;
    public String url;
    public String user;
    public double ms;

    /** Parses a record; `{"event_time": "2026-01-01T07:12:00Z", ...}` is of the hour `2026-01-01T07`. */
    public static Event parse(int partition, long offset, byte[] value) {
        Event event = new Event();
        event.partition = partition;
        event.offset = offset;
        try (JsonParser parser = JSON.createParser(value)) {
            parser.nextToken();
            while (parser.nextToken() == JsonToken.FIELD_NAME) {
                String name = parser.currentName();
                parser.nextToken();
                switch (name) {
                    case "event_time" -> event.hour = parser.getText().substring(0, HOUR_LENGTH);
                    case "url" -> event.url = parser.getText();
                    case "user_id" -> event.user = parser.getText();
                    case "ms" -> event.ms = parser.getDoubleValue();
                    default -> parser.skipChildren();
                }
            }
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
        return event;
    }

    /** The group of the event. */
    public String key() {
        return hour + " " + url;
    }
}
