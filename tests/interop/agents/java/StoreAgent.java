import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.io.BufferedReader;
import java.io.File;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.MQVersion;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageExtBatch;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.MessageStore;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.SelectMappedBufferResult;
import org.apache.rocketmq.store.config.FlushDiskType;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.queue.ConsumeQueueInterface;
import org.apache.rocketmq.store.queue.CqUnit;
import org.apache.rocketmq.store.queue.ReferredIterator;

/**
 * Opens a store directory with the real broker and store classes of RocketMQ, in its own process, for the interop
 * suite: the same JSON lines as Agent.java, other commands (tests/interop/README.md). What it reads comes from
 * MessageStore.getMessage, the consume queues' iterators, the index and the broker's own managers; what it appends
 * goes through MessageStore.putMessage. It ends when it is told to close or halt, or when its standard input ends.
 */
public final class StoreAgent {
    private static final PrintStream OUT = new PrintStream(new FileOutputStream(FileDescriptor.out), false);
    private static final String GROUP = "TOOLS_CONSUMER";

    private BrokerController broker;
    private MessageStore store;
    /** Threads that a command left to start, once its answer is out: one of them may halt the process. */
    private final List<Thread> afterAnswer = new ArrayList<>();

    public static void main(String[] args) throws Exception {
        System.setOut(System.err);
        StoreAgent agent = new StoreAgent();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JSONObject command = JSON.parseObject(line);
            JSONObject answer;
            try {
                answer = agent.run(command);
            } catch (Throwable why) {
                why.printStackTrace();
                agent.afterAnswer.clear();
                answer = new JSONObject();
                answer.put("error", String.valueOf(why));
            }
            answer.put("rq", command.get("rq"));
            emit(answer);
            agent.afterAnswer.forEach(Thread::start);
            agent.afterAnswer.clear();
        }
        Runtime.getRuntime().halt(0);
    }

    private static void emit(JSONObject line) {
        byte[] bytes = (line.toJSONString() + "\n").getBytes(StandardCharsets.UTF_8);
        synchronized (OUT) {
            OUT.write(bytes, 0, bytes.length);
            OUT.flush();
        }
    }

    private JSONObject run(JSONObject c) throws Exception {
        switch (c.getString("op")) {
            case "hello":
                return new JSONObject().fluentPut("version", MQVersion.getVersionDesc(MQVersion.CURRENT_VERSION));
            case "open":
                return open(c);
            case "read":
                return read();
            case "query":
                return query(c);
            case "view":
                return view(c);
            case "append":
                return append(c);
            case "flood":
                return flood(c);
            case "topic":
                broker.getTopicConfigManager().updateTopicConfig(
                    new TopicConfig(c.getString("topic"), c.getIntValue("queues"), c.getIntValue("queues")));
                return new JSONObject();
            case "group": {
                SubscriptionGroupConfig group = new SubscriptionGroupConfig();
                group.setGroupName(c.getString("group"));
                group.setRetryMaxTimes(c.getIntValue("retries"));
                broker.getSubscriptionGroupManager().updateSubscriptionGroupConfig(group);
                return new JSONObject();
            }
            case "commit":
                broker.getConsumerOffsetManager().commitOffset("interop", c.getString("group"), c.getString("topic"),
                    c.getIntValue("queue"), c.getLongValue("offset"));
                return new JSONObject();
            case "tables":
                return tables();
            case "close":
                broker.shutdown();
                return new JSONObject();
            case "halt":
                Runtime.getRuntime().halt(137);
                throw new IllegalStateException("halted");
            default:
                throw new IllegalArgumentException("no such op: " + c.getString("op"));
        }
    }

    private JSONObject open(JSONObject c) throws Exception {
        String root = c.getString("root");
        int port = c.getIntValue("port");
        BrokerConfig brokerConfig = new BrokerConfig();
        brokerConfig.setBrokerName(c.getString("broker"));
        brokerConfig.setBrokerIP1("127.0.0.1");
        brokerConfig.setListenPort(port);
        NettyServerConfig server = new NettyServerConfig();
        server.setBindAddress("127.0.0.1");
        server.setListenPort(port);
        MessageStoreConfig config = new MessageStoreConfig();
        config.setStorePathRootDir(root);
        config.setStorePathCommitLog(root + File.separator + "commitlog");
        config.setMappedFileSizeCommitLog(c.getIntValue("commitlog_file"));
        config.setMappedFileSizeConsumeQueue(c.getIntValue("consumequeue_file"));
        config.setMaxHashSlotNum(c.getIntValue("index_slots"));
        config.setMaxIndexNum(c.getIntValue("index_units"));
        config.setMaxMessageSize(c.getIntValue("message_max"));
        config.setFlushDiskType(FlushDiskType.valueOf(c.getString("flush")));
        config.setHaListenPort(port + 1);
        // Its wheel is 38 MB of files that no scenario looks at.
        config.setTimerWheelEnable(false);
        boolean crashed = new File(root, "abort").exists();
        broker = new BrokerController(brokerConfig, server, new NettyClientConfig(), config);
        if (!broker.initialize()) {
            throw new IllegalStateException("the broker does not load this store");
        }
        store = broker.getMessageStore();
        broker.start();
        JSONObject answer = new JSONObject();
        answer.put("crashed", crashed);
        answer.put("end", store.getMaxPhyOffset());
        return answer;
    }

    // ---- reading

    /** Every message of every queue as getMessage gives it, with what its consume queue unit says. */
    private JSONObject read() throws Exception {
        waitForDispatch();
        JSONArray messages = new JSONArray();
        JSONArray queues = new JSONArray();
        for (Map.Entry<String, ? extends Map<Integer, ConsumeQueueInterface>> topic
            : store.getQueueStore().getConsumeQueueTable().entrySet()) {
            for (int queue : topic.getValue().keySet()) {
                long min = store.getMinOffsetInQueue(topic.getKey(), queue);
                long max = store.getMaxOffsetInQueue(topic.getKey(), queue);
                queues.add(new Object[] {topic.getKey(), queue, min, max});
                readQueue(topic.getKey(), queue, min, max, messages);
            }
        }
        return new JSONObject().fluentPut("queues", queues).fluentPut("messages", messages);
    }

    private void readQueue(String topic, int queue, long min, long max, JSONArray out) throws Exception {
        Map<Long, CqUnit> units = new TreeMap<>();
        for (long at = min; at < max; ) {
            ReferredIterator<CqUnit> iterator = store.getConsumeQueue(topic, queue).iterateFrom(at);
            if (iterator == null) {
                throw new IllegalStateException("no units of " + topic + " queue " + queue + " at " + at);
            }
            try {
                while (iterator.hasNext() && at < max) {
                    CqUnit unit = iterator.next();
                    units.put(unit.getQueueOffset(), unit);
                    at = unit.getQueueOffset() + 1;
                }
            } finally {
                iterator.release();
            }
        }
        for (long at = min; at < max; ) {
            GetMessageResult result = store.getMessage(GROUP, topic, queue, at, 32, null);
            try {
                List<SelectMappedBufferResult> found = result.getMessageMapedList();
                if (found.isEmpty()) {
                    throw new IllegalStateException(topic + " queue " + queue + " at " + at + " of " + max + ": "
                        + result.getStatus() + ", next " + result.getNextBeginOffset());
                }
                for (int i = 0; i < found.size(); i++) {
                    long offset = result.getMessageQueueOffset().get(i);
                    if (offset != at) {
                        throw new IllegalStateException(topic + " queue " + queue + ": " + offset + " follows " + at);
                    }
                    out.add(describe(found.get(i).getByteBuffer(), topic, queue, offset, units.get(offset)));
                    at++;
                }
            } finally {
                result.release();
            }
        }
    }

    private static JSONObject describe(ByteBuffer bytes, String topic, int queue, long offset, CqUnit unit) {
        byte[] raw = new byte[bytes.remaining()];
        bytes.duplicate().get(raw);
        MessageExt message = MessageDecoder.decode(ByteBuffer.wrap(raw), true, false, false, false, true);
        if (message == null) {
            throw new IllegalStateException(topic + " queue " + queue + " offset " + offset + " is not decoded");
        }
        JSONObject out = new JSONObject();
        out.put("topic", topic);
        out.put("queue", queue);
        out.put("offset", offset);
        out.put("phy", message.getCommitLogOffset());
        out.put("size", message.getStoreSize());
        out.put("raw", sha256(raw));
        out.put("body", sha256(message.getBody() == null ? new byte[0] : message.getBody()));
        out.put("properties", new TreeMap<>(message.getProperties()));
        out.put("unit_phy", unit.getPos());
        out.put("unit_size", unit.getSize());
        out.put("unit_tags", unit.getTagsCode());
        return out;
    }

    private static String sha256(byte[] bytes) {
        try {
            StringBuilder out = new StringBuilder();
            for (byte b : MessageDigest.getInstance("SHA-256").digest(bytes)) {
                out.append(Character.forDigit(b >> 4 & 15, 16)).append(Character.forDigit(b & 15, 16));
            }
            return out.toString();
        } catch (java.security.NoSuchAlgorithmException why) {
            throw new IllegalStateException(why);
        }
    }

    /** Until everything appended is in the consume queues and the index. */
    private void waitForDispatch() throws InterruptedException {
        long deadline = System.currentTimeMillis() + 10_000;
        while (store.dispatchBehindBytes() > 0) {
            if (System.currentTimeMillis() > deadline) {
                throw new IllegalStateException(store.dispatchBehindBytes() + " bytes are not dispatched after 10 s");
            }
            Thread.sleep(5);
        }
    }

    private JSONObject query(JSONObject c) {
        JSONArray found = new JSONArray();
        for (Object one : c.getJSONArray("keys")) {
            JSONArray key = (JSONArray) one;
            JSONArray places = new JSONArray();
            long end = System.currentTimeMillis() + 60_000;
            for (ByteBuffer bytes : store.queryMessage(key.getString(0), key.getString(1), 64, 0, end)
                .getMessageBufferList()) {
                places.add(bytes.getLong(bytes.position() + MessageDecoder.MESSAGE_PHYSIC_OFFSET_POSITION));
            }
            found.add(places);
        }
        return new JSONObject().fluentPut("found", found);
    }

    /** By id: an id is an address and a physical offset, and this is what the store makes of the latter. */
    private JSONObject view(JSONObject c) {
        JSONArray bodies = new JSONArray();
        for (Object phy : c.getJSONArray("phys")) {
            MessageExt message = store.lookMessageByOffset(((Number) phy).longValue());
            bodies.add(message == null ? null
                : sha256(message.getBody() == null ? new byte[0] : message.getBody()) + " " + message.getTopic() + " "
                    + message.getQueueId() + " " + message.getQueueOffset());
        }
        return new JSONObject().fluentPut("found", bodies);
    }

    // ---- appending

    private JSONObject append(JSONObject c) throws Exception {
        JSONArray results = new JSONArray();
        for (Object one : c.getJSONArray("messages")) {
            JSONObject m = (JSONObject) one;
            results.add(result(m.containsKey("batch") ? store.putMessages(batch(m)) : store.putMessage(single(m))));
        }
        return new JSONObject().fluentPut("results", results);
    }

    private static Object[] result(PutMessageResult put) {
        if (!put.isOk()) {
            throw new IllegalStateException("refused: " + put);
        }
        return new Object[] {
            put.getAppendMessageResult().getLogicsOffset(), put.getAppendMessageResult().getMsgId(),
        };
    }

    private static <T extends MessageExtBrokerInner> T fill(T inner, JSONObject m) throws Exception {
        inner.setTopic(m.getString("topic"));
        inner.setQueueId(m.getIntValue("queue"));
        inner.setFlag(m.getIntValue("flag"));
        inner.setBornTimestamp(System.currentTimeMillis());
        String host = m.containsKey("host") ? m.getString("host") : "127.0.0.1";
        inner.setBornHost(new InetSocketAddress(host, 40_000));
        inner.setStoreHost(new InetSocketAddress(host, 10_911));
        inner.setReconsumeTimes(0);
        return inner;
    }

    private static MessageExtBrokerInner single(JSONObject m) throws Exception {
        MessageExtBrokerInner inner = fill(new MessageExtBrokerInner(), m);
        inner.setBody(Base64.getDecoder().decode(m.getString("b64")));
        MessageAccessor.setProperties(inner, properties(m));
        inner.setPropertiesString(MessageDecoder.messageProperties2String(inner.getProperties()));
        return inner;
    }

    private static Map<String, String> properties(JSONObject m) {
        Map<String, String> out = new TreeMap<>();
        m.getJSONObject("properties").forEach((name, value) -> out.put(name, (String) value));
        return out;
    }

    private static MessageExtBatch batch(JSONObject m) throws Exception {
        List<Message> messages = new ArrayList<>();
        for (Object one : m.getJSONArray("batch")) {
            Message message = new Message(m.getString("topic"),
                Base64.getDecoder().decode(((JSONObject) one).getString("b64")));
            MessageAccessor.setProperties(message, properties((JSONObject) one));
            messages.add(message);
        }
        MessageExtBatch batch = fill(new MessageExtBatch(), m);
        batch.setBody(MessageDecoder.encodeMessages(messages));
        // As the broker's send processor does; the store wants a map.
        MessageAccessor.putProperty(batch, MessageConst.PROPERTY_CLUSTER, "DefaultCluster");
        return batch;
    }

    /** Once this is answered, threads append without end and tell of each message; after so many the process halts. */
    private JSONObject flood(JSONObject c) throws Exception {
        JSONArray queues = c.getJSONArray("queues");
        AtomicInteger stored = new AtomicInteger();
        int halt = c.getIntValue("halt_after");
        for (Object one : queues) {
            JSONArray place = (JSONArray) one;
            Thread thread = new Thread(() -> {
                for (int i = 0; ; i++) {
                    try {
                        String body = c.getString("prefix") + "-" + place.getString(0) + "-" + place.getIntValue(1)
                            + "-" + i + " " + "x".repeat(i * 37 % 3000);
                        JSONObject m = new JSONObject().fluentPut("topic", place.getString(0))
                            .fluentPut("queue", place.getIntValue(1))
                            .fluentPut("b64", Base64.getEncoder().encodeToString(body.getBytes(StandardCharsets.UTF_8)))
                            .fluentPut("properties", new JSONObject().fluentPut("KEYS", "flood" + i)
                                .fluentPut("TAGS", "tag" + i % 3));
                        Object offset = result(store.putMessage(single(m)))[0];
                        emit(new JSONObject().fluentPut("ev", "msg").fluentPut("c", "flood")
                            .fluentPut("topic", place.getString(0)).fluentPut("queue", place.getIntValue(1))
                            .fluentPut("offset", offset).fluentPut("body", sha256(body.getBytes(StandardCharsets.UTF_8))));
                        if (stored.incrementAndGet() == halt) {
                            Runtime.getRuntime().halt(137);
                        }
                    } catch (Exception why) {
                        why.printStackTrace();
                        return;
                    }
                }
            });
            thread.setDaemon(true);
            afterAnswer.add(thread);
        }
        return new JSONObject();
    }

    // ---- tables

    /** What the broker's managers hold, as they loaded it from the JSON files or changed it since. */
    private JSONObject tables() {
        JSONObject topics = new JSONObject();
        broker.getTopicConfigManager().getTopicConfigTable().forEach((name, topic) -> topics.put(name,
            new Object[] {topic.getReadQueueNums(), topic.getWriteQueueNums(), topic.getPerm()}));
        JSONObject groups = new JSONObject();
        broker.getSubscriptionGroupManager().getSubscriptionGroupTable().forEach((name, group) -> groups.put(name,
            new Object[] {group.getRetryMaxTimes(), group.getRetryQueueNums(), group.isConsumeEnable()}));
        JSONObject offsets = new JSONObject();
        broker.getConsumerOffsetManager().getOffsetTable().forEach((place, queues) ->
            queues.forEach((queue, offset) -> offsets.put(place + "@" + queue, offset)));
        JSONObject delays = new JSONObject();
        broker.getScheduleMessageService().getOffsetTable().forEach((level, offset) ->
            delays.put(String.valueOf(level), offset));
        return new JSONObject().fluentPut("topics", topics).fluentPut("groups", groups).fluentPut("offsets", offsets)
            .fluentPut("delays", delays);
    }
}
