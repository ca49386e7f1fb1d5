import java.io.IOException;
import java.io.UncheckedIOException;
import java.time.Duration;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeutils.SimpleTypeSerializerSnapshot;
import org.apache.flink.api.common.typeutils.TypeSerializerSnapshot;
import org.apache.flink.api.common.typeutils.base.TypeSerializerSingleton;
import org.apache.flink.configuration.CheckpointingOptions;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.connector.kafka.source.reader.deserializer.KafkaRecordDeserializationSchema;
import org.apache.flink.core.execution.CheckpointingMode;
import org.apache.flink.core.memory.DataInputView;
import org.apache.flink.core.memory.DataOutputView;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;
import org.apache.flink.util.Collector;
import org.apache.kafka.clients.consumer.ConsumerRecord;

/**
 * The reference view in Flink: keyed by hour and url, states on the heap, a checkpoint every ten seconds.
 *
 * <p>Its states are exact after a failure; what it wrote into Redis is written again. Run by bench_speed.py with:
 * BOOTSTRAP TOPIC REDIS_HOST REDIS_PORT FOLDER GROUP. It begins at the offsets that are committed for the group.
 */
public final class FlinkPeer {
    private static final int TASKS = 2;
    private static RedisSink sink;

    public static void main(String[] arguments) throws Exception {
        sink = new RedisSink(arguments[2], Integer.parseInt(arguments[3]));
        Configuration settings = new Configuration();
        settings.set(CheckpointingOptions.CHECKPOINT_STORAGE, "filesystem");
        settings.set(CheckpointingOptions.CHECKPOINTS_DIRECTORY, "file://" + arguments[4]);
        StreamExecutionEnvironment environment =
            StreamExecutionEnvironment.createLocalEnvironment(TASKS, settings);
        environment.enableCheckpointing(10_000, CheckpointingMode.EXACTLY_ONCE);
        environment.setBufferTimeout(1);
        environment.getConfig().enableObjectReuse();
        KafkaSource<Event> source = KafkaSource.<Event>builder()
            .setBootstrapServers(arguments[0])
            .setTopics(arguments[1])
            .setGroupId(arguments[5])
            .setStartingOffsets(OffsetsInitializer.committedOffsets())
            .setDeserializer(new Parse())
            .build();
        environment.fromSource(source, WatermarkStrategy.noWatermarks(), "hits")
            .keyBy(Event::key)
            .process(new Add())
            .sinkTo(new DiscardingSink<>());
        environment.execute("peer");
    }

    private static final class Parse implements KafkaRecordDeserializationSchema<Event> {
        @Override
        public void deserialize(ConsumerRecord<byte[], byte[]> record, Collector<Event> out) {
            sink.begin(record.partition(), record.offset());
            out.collect(Event.parse(record.partition(), record.offset(), record.value()));
        }

        @Override
        public TypeInformation<Event> getProducedType() {
            return TypeInformation.of(Event.class);
        }
    }

    private static final class Add extends KeyedProcessFunction<String, Event, Void> {
        private transient ValueState<State> states;

        @Override
        public void open(OpenContext context) {
            states = getRuntimeContext().getState(new ValueStateDescriptor<>("states", new StateSerializer()));
        }

        @Override
        public void processElement(Event event, Context context, Collector<Void> out) throws IOException {
            State state = states.value();
            state = (state == null ? new State() : state).add(event);
            states.update(state);
            sink.put(context.getCurrentKey(), state.toBytes(), event.partition, event.offset);
        }
    }

    /** Used by checkpoints alone: states live on the heap as they are. */
    public static final class StateSerializer extends TypeSerializerSingleton<State> {
        @Override
        public boolean isImmutableType() {
            return false;
        }

        @Override
        public State createInstance() {
            return new State();
        }

        @Override
        public State copy(State from) {
            return State.fromBytes(from.toBytes());
        }

        @Override
        public State copy(State from, State reuse) {
            return copy(from);
        }

        @Override
        public int getLength() {
            return -1;
        }

        @Override
        public void serialize(State state, DataOutputView target) {
            try {
                byte[] bytes = state.toBytes();
                target.writeInt(bytes.length);
                target.write(bytes);
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
        }

        @Override
        public State deserialize(DataInputView source) throws IOException {
            byte[] bytes = new byte[source.readInt()];
            source.readFully(bytes);
            return State.fromBytes(bytes);
        }

        @Override
        public State deserialize(State reuse, DataInputView source) throws IOException {
            return deserialize(source);
        }

        @Override
        public void copy(DataInputView source, DataOutputView target) throws IOException {
            serialize(deserialize(source), target);
        }

        @Override
        public TypeSerializerSnapshot<State> snapshotConfiguration() {
            return new StateSerializerSnapshot();
        }
    }

    public static final class StateSerializerSnapshot extends SimpleTypeSerializerSnapshot<State> {
        public StateSerializerSnapshot() {
            super(StateSerializer::new);
        }
    }
}
