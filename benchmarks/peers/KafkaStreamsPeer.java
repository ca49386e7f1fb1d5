import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.common.serialization.Deserializer;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.serialization.Serializer;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.processor.api.ContextualProcessor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;

/**
 * The reference view in Kafka Streams, at least once, with its changelog in Kafka.
 *
 * <p>Each partition has states of its own, which a reader would merge: the topic is not divided by url, and a
 * repartition topic would cost another way through the broker. Run by bench_speed.py with: BOOTSTRAP TOPIC
 * REDIS_HOST REDIS_PORT FOLDER GROUP. It begins at the offsets that are committed for the group.
 */
public final class KafkaStreamsPeer {
    private static final String STORE = "states";

    public static void main(String[] arguments) throws Exception {
        RedisSink sink = new RedisSink(arguments[2], Integer.parseInt(arguments[3]));
        Serializer<State> serializer = (topic, state) -> state == null ? null : state.toBytes();
        Deserializer<State> deserializer = (topic, bytes) -> bytes == null ? null : State.fromBytes(bytes);
        Serde<State> serde = Serdes.serdeFrom(serializer, deserializer);

        StreamsBuilder builder = new StreamsBuilder();
        builder.addStateStore(
            Stores.keyValueStoreBuilder(Stores.inMemoryKeyValueStore(STORE), Serdes.String(), serde)
                .withCachingEnabled()
                .withLoggingEnabled(Map.of()));
        builder.<byte[], byte[]>stream(arguments[1]).process(() -> new Add(sink), STORE);

        Properties settings = new Properties();
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, arguments[5]);
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, arguments[0]);
        settings.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.ByteArraySerde.class);
        settings.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.ByteArraySerde.class);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, arguments[4]);
        settings.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, 2);
        settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 1000);
        settings.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 256L << 20);
        settings.put(StreamsConfig.consumerPrefix(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG), "none");
        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        Runtime.getRuntime().addShutdownHook(new Thread(streams::close));
        streams.start();
    }

    private static final class Add extends ContextualProcessor<byte[], byte[], Void, Void> {
        private final RedisSink sink;
        private KeyValueStore<String, State> states;

        Add(RedisSink sink) {
            this.sink = sink;
        }

        @Override
        public void init(ProcessorContext<Void, Void> context) {
            super.init(context);
            states = context.getStateStore(STORE);
        }

        @Override
        public void process(Record<byte[], byte[]> record) {
            var location = context().recordMetadata().orElseThrow();
            Event event = Event.parse(location.partition(), location.offset(), record.value());
            State state = states.get(event.key());
            state = (state == null ? new State() : state).add(event);
            states.put(event.key(), state);
            sink.begin(event.partition, event.offset);
            sink.put(event.partition + " " + event.key(), state.toBytes(), event.partition, event.offset);
        }
    }
}
