import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.MQVersion;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;

/**
 * Drives the RocketMQ Java client for the interop suite: takes one JSON command a line on standard input, answers
 * with one JSON line each on standard output, and reports every consumed message as an event line.
 *
 * The commands and events are described in tests/interop/README.md; the Go and C++ agents speak the same. This one
 * source is compiled once against each client version; the few calls whose signature differs go through reflection.
 * It ends when its standard input does.
 */
public final class Agent {
    private static final PrintStream OUT = new PrintStream(new FileOutputStream(FileDescriptor.out), false);
    private static final int INLINE_BODY_MAX = 1024;

    private final String nameServer;
    private final Map<String, DefaultMQProducer> producers = new ConcurrentHashMap<>();
    private final Map<String, Runnable> consumers = new ConcurrentHashMap<>();
    private final Map<String, Assigned> assigned = new ConcurrentHashMap<>();

    private Agent(String nameServer) {
        this.nameServer = nameServer;
    }

    public static void main(String[] args) throws Exception {
        System.setOut(System.err);
        Agent agent = new Agent(args[0]);
        ExecutorService workers = Executors.newCachedThreadPool(r -> {
            Thread thread = new Thread(r, "agent");
            thread.setDaemon(true);
            return thread;
        });
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JSONObject command = JSON.parseObject(line);
            workers.submit(() -> agent.answer(command));
        }
        Runtime.getRuntime().halt(0);
    }

    private void answer(JSONObject command) {
        JSONObject answer;
        try {
            answer = run(command);
        } catch (Throwable why) {
            answer = new JSONObject();
            answer.put("error", withCauses(why));
        }
        answer.put("rq", command.get("rq"));
        emit(answer);
    }

    private static String withCauses(Throwable why) {
        StringBuilder out = new StringBuilder();
        for (Throwable t = why; t != null; t = t.getCause()) {
            String text = String.valueOf(t);
            int end = text.indexOf("\nFor more information");
            out.append(out.length() == 0 ? "" : " <- ").append(end < 0 ? text : text.substring(0, end));
        }
        return out.toString();
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
                return hello();
            case "producer":
                return startProducer(c);
            case "stop_producer":
                producers.remove(c.getString("name")).shutdown();
                return new JSONObject();
            case "create_topic":
                return createTopic(c);
            case "send":
                return send(c);
            case "flood":
                return flood(c);
            case "consumer":
                return startConsumer(c);
            case "seek":
                return seek(c);
            case "stop_consumer":
                consumers.remove(c.getString("name")).run();
                return new JSONObject();
            case "query":
                return query(c);
            default:
                throw new IllegalArgumentException("no such op: " + c.getString("op"));
        }
    }

    /** What this process really runs, so that a wrong class path or header type cannot pass unnoticed. */
    private static JSONObject hello() {
        JSONObject answer = new JSONObject();
        answer.put("headers", RemotingCommand.getSerializeTypeConfigInThisServer().name());
        answer.put("version", MQVersion.getVersionDesc(MQVersion.CURRENT_VERSION));
        return answer;
    }

    // ---- producers

    private JSONObject startProducer(JSONObject c) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(c.getString("group"));
        producer.setNamesrvAddr(nameServer);
        producer.setInstanceName(c.getString("name"));
        producer.setPollNameServerInterval(2000);
        producer.setSendMsgTimeout(c.containsKey("timeout_ms") ? c.getIntValue("timeout_ms") : 10000);
        if (c.containsKey("retries")) {
            producer.setRetryTimesWhenSendFailed(c.getIntValue("retries"));
        }
        if (c.containsKey("compress_over")) {
            producer.setCompressMsgBodyOverHowmuch(c.getIntValue("compress_over"));
        }
        producer.start();
        producers.put(c.getString("name"), producer);
        return new JSONObject();
    }

    private JSONObject createTopic(JSONObject c) throws Exception {
        DefaultMQProducer producer = producers.get(c.getString("producer"));
        for (Method method : DefaultMQProducer.class.getMethods()) {
            Class<?>[] types = method.getParameterTypes();
            if (!method.getName().equals("createTopic") || types.length < 3 || types[2] != int.class) {
                continue;
            }
            if (types.length == 3) {
                method.invoke(producer, "TBW102", c.getString("topic"), c.getIntValue("queues"));
                return new JSONObject();
            }
            if (types.length == 4 && types[3] == Map.class) {
                method.invoke(producer, "TBW102", c.getString("topic"), c.getIntValue("queues"), new HashMap<>());
                return new JSONObject();
            }
        }
        throw new IllegalStateException("this client has no createTopic");
    }

    private static Message message(JSONObject m) {
        Message message = new Message(m.getString("topic"), Base64.getDecoder().decode(m.getString("b64")));
        if (m.containsKey("tag")) {
            message.setTags(m.getString("tag"));
        }
        if (m.containsKey("keys")) {
            message.setKeys(m.getString("keys"));
        }
        if (m.containsKey("flag")) {
            message.setFlag(m.getIntValue("flag"));
        }
        if (m.containsKey("delay")) {
            message.setDelayTimeLevel(m.getIntValue("delay"));
        }
        JSONObject properties = m.getJSONObject("props");
        if (properties != null) {
            properties.forEach((name, value) -> message.putUserProperty(name, (String) value));
        }
        return message;
    }

    private static JSONObject result(SendResult result) {
        JSONObject out = new JSONObject();
        out.put("status", result.getSendStatus().name());
        out.put("msg_id", result.getMsgId());
        out.put("offset_msg_id", result.getOffsetMsgId());
        out.put("queue", result.getMessageQueue().getQueueId());
        out.put("queue_offset", result.getQueueOffset());
        return out;
    }

    private JSONObject send(JSONObject c) throws Exception {
        DefaultMQProducer producer = producers.get(c.getString("producer"));
        JSONArray given = c.getJSONArray("messages");
        JSONArray results = new JSONArray();
        List<Message> messages = new ArrayList<>();
        for (int i = 0; i < given.size(); i++) {
            messages.add(message(given.getJSONObject(i)));
        }
        switch (c.getString("how")) {
            case "sync":
                for (int i = 0; i < messages.size(); i++) {
                    Integer queue = given.getJSONObject(i).getInteger("queue");
                    results.add(result(queue == null
                        ? producer.send(messages.get(i))
                        : producer.send(messages.get(i), Agent::queueNumber, queue)));
                }
                break;
            case "oneway":
                for (Message message : messages) {
                    producer.sendOneway(message);
                }
                break;
            case "batch":
                results.add(result(producer.send(messages)));
                break;
            case "async":
                sendAsync(producer, messages, results);
                break;
            default:
                throw new IllegalArgumentException("no such way to send: " + c.getString("how"));
        }
        JSONObject answer = new JSONObject();
        answer.put("results", results);
        return answer;
    }

    private static MessageQueue queueNumber(List<MessageQueue> queues, Message message, Object number) {
        for (MessageQueue queue : queues) {
            if (queue.getQueueId() == (Integer) number) {
                return queue;
            }
        }
        throw new IllegalStateException("no queue " + number + " among " + queues);
    }

    private static void sendAsync(DefaultMQProducer producer, List<Message> messages, JSONArray results)
        throws Exception {
        CountDownLatch left = new CountDownLatch(messages.size());
        JSONObject[] slots = new JSONObject[messages.size()];
        for (int i = 0; i < messages.size(); i++) {
            int slot = i;
            producer.send(messages.get(i), new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    slots[slot] = result(result);
                    left.countDown();
                }

                @Override
                public void onException(Throwable why) {
                    slots[slot] = new JSONObject();
                    slots[slot].put("error", String.valueOf(why));
                    left.countDown();
                }

                private JSONObject result(SendResult result) {
                    return Agent.result(result);
                }
            });
        }
        if (!left.await(30, TimeUnit.SECONDS)) {
            throw new IllegalStateException(left.getCount() + " async sends were never answered");
        }
        Collections.addAll(results, (Object[]) slots);
    }

    /** One sender a queue; each sends its bodies "prefix-queue-number" in order and repeats one until it is acked. */
    private JSONObject flood(JSONObject c) throws Exception {
        DefaultMQProducer producer = producers.get(c.getString("producer"));
        int queues = c.getIntValue("queues");
        int perQueue = c.getIntValue("count") / queues;
        long deadline = System.currentTimeMillis() + c.getLongValue("timeout_ms");
        AtomicInteger acked = new AtomicInteger();
        JSONArray repeated = new JSONArray();
        JSONArray places = new JSONArray();
        List<Thread> threads = new ArrayList<>();
        for (int q = 0; q < queues; q++) {
            int queue = q;
            Thread thread = new Thread(() -> {
                for (int i = 0; i < perQueue; i++) {
                    String body = c.getString("prefix") + "-" + queue + "-" + i;
                    Message message = new Message(c.getString("topic"), body.getBytes(StandardCharsets.UTF_8));
                    while (System.currentTimeMillis() < deadline) {
                        try {
                            SendResult result = producer.send(message, Agent::queueNumber, queue);
                            if (result.getSendStatus().name().equals("SEND_OK")) {
                                synchronized (places) {
                                    places.add(new Object[] {body, queue, result.getQueueOffset()});
                                }
                                break;
                            }
                        } catch (Exception why) {
                            sleep(200);
                        }
                        synchronized (repeated) {
                            repeated.add(body);
                        }
                    }
                    int n = acked.incrementAndGet();
                    if (n % 500 == 0) {
                        JSONObject progress = new JSONObject();
                        progress.put("ev", "acked");
                        progress.put("producer", c.getString("producer"));
                        progress.put("count", n);
                        emit(progress);
                    }
                }
            });
            thread.start();
            threads.add(thread);
        }
        for (Thread thread : threads) {
            thread.join();
        }
        JSONObject answer = new JSONObject();
        answer.put("repeated", repeated);
        answer.put("places", places);
        return answer;
    }

    private static void sleep(long ms) {
        try {
            Thread.sleep(ms);
        } catch (InterruptedException why) {
            throw new IllegalStateException(why);
        }
    }

    // ---- consumers

    private JSONObject startConsumer(JSONObject c) throws Exception {
        if (c.getString("mode").equals("lite")) {
            startLitePull(c);
        } else {
            startPush(c);
        }
        return new JSONObject();
    }

    private void startPush(JSONObject c) throws Exception {
        String name = c.getString("name");
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(c.getString("group"));
        consumer.setNamesrvAddr(nameServer);
        consumer.setInstanceName(name);
        consumer.setPollNameServerInterval(2000);
        consumer.setConsumeThreadMin(4);
        consumer.setConsumeThreadMax(4);
        consumer.setSuspendCurrentQueueTimeMillis(200);
        consumer.setConsumeFromWhere("last".equals(c.getString("from"))
            ? ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET : ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        if (c.containsKey("max_reconsume")) {
            consumer.setMaxReconsumeTimes(c.getIntValue("max_reconsume"));
        }
        if ("broadcast".equals(c.getString("model"))) {
            setEnum(consumer, "setMessageModel", "BROADCASTING");
        }
        for (Map.Entry<String, Object> topic : c.getJSONObject("topics").entrySet()) {
            consumer.subscribe(topic.getKey(), (String) topic.getValue());
        }
        FailureRule rule = new FailureRule(c.getJSONObject("fail"));
        int retryLevel = c.getIntValue("retry_level");
        if (c.getString("mode").equals("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                boolean good = true;
                for (MessageExt message : messages) {
                    good &= rule.take(name, message);
                }
                return good ? ConsumeOrderlyStatus.SUCCESS : ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                boolean good = true;
                for (MessageExt message : messages) {
                    good &= rule.take(name, message);
                }
                context.setDelayLevelWhenNextConsume(retryLevel);
                return good ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS : ConsumeConcurrentlyStatus.RECONSUME_LATER;
            });
        }
        consumer.start();
        consumers.put(name, consumer::shutdown);
    }

    /** Sets an enum whose package differs between client versions. */
    @SuppressWarnings({"unchecked", "rawtypes"})
    private static void setEnum(Object target, String setter, String value) throws Exception {
        for (Method method : target.getClass().getMethods()) {
            if (method.getName().equals(setter)) {
                method.invoke(target, Enum.valueOf((Class<Enum>) method.getParameterTypes()[0], value));
                return;
            }
        }
        throw new IllegalStateException("this client has no " + setter);
    }

    private void startLitePull(JSONObject c) throws Exception {
        String name = c.getString("name");
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(c.getString("group"));
        consumer.setNamesrvAddr(nameServer);
        consumer.setInstanceName(name);
        consumer.setPollNameServerInterval(2000);
        consumer.setPullThreadNums(4);
        consumer.setAutoCommit(false);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        boolean assign = c.getBooleanValue("assign");
        if (!assign) {
            for (Map.Entry<String, Object> topic : c.getJSONObject("topics").entrySet()) {
                consumer.subscribe(topic.getKey(), (String) topic.getValue());
            }
        }
        consumer.start();
        if (assign) {
            List<MessageQueue> queues = new ArrayList<>();
            for (String topic : c.getJSONObject("topics").keySet()) {
                queues.addAll(consumer.fetchMessageQueues(topic));
            }
            consumer.assign(queues);
            assigned.put(name, new Assigned(consumer, queues));
        }
        FailureRule rule = new FailureRule(null);
        boolean[] run = {true};
        Thread poller = new Thread(() -> {
            while (run[0]) {
                for (MessageExt message : consumer.poll(200)) {
                    rule.take(name, message);
                }
                consumer.commitSync();
            }
        });
        poller.start();
        consumers.put(name, () -> {
            run[0] = false;
            try {
                poller.join();
            } catch (InterruptedException why) {
                throw new IllegalStateException(why);
            }
            consumer.commitSync();
            consumer.shutdown();
        });
    }

    /** A pull consumer and the queues it was given. */
    private static final class Assigned {
        final DefaultLitePullConsumer consumer;
        final List<MessageQueue> queues;

        Assigned(DefaultLitePullConsumer consumer, List<MessageQueue> queues) {
            this.consumer = consumer;
            this.queues = queues;
        }
    }

    /**
     * Seeks in each queue, up to five times: the client interrupts the queue's waiting pull to seek, which may close
     * the one connection to the broker, also under the look-up of another queue's bounds that the next seek makes.
     */
    private JSONObject seek(JSONObject c) throws Exception {
        Assigned of = assigned.get(c.getString("name"));
        for (MessageQueue queue : of.queues) {
            for (int tries = 1; ; tries++) {
                try {
                    of.consumer.seek(queue, c.getLongValue("offset"));
                    break;
                } catch (MQClientException why) {
                    if (tries == 5) {
                        throw why;
                    }
                    sleep(200);
                }
            }
        }
        return new JSONObject();
    }

    /** Reports each message, and says which ones to fail: body to the number of attempts that fail. */
    private static final class FailureRule {
        private final JSONObject times;
        private final Map<String, AtomicInteger> attempts = new ConcurrentHashMap<>();
        private final Map<String, AtomicInteger> busy = new ConcurrentHashMap<>();

        FailureRule(JSONObject times) {
            this.times = times == null ? new JSONObject() : times;
        }

        boolean take(String consumer, MessageExt message) {
            AtomicInteger together =
                busy.computeIfAbsent(message.getTopic() + "/" + message.getQueueId(), k -> new AtomicInteger());
            int now = together.incrementAndGet();
            byte[] body = message.getBody();
            String text = body.length <= INLINE_BODY_MAX ? new String(body, StandardCharsets.UTF_8) : "";
            boolean good = true;
            if (times.containsKey(text)) {
                int attempt = attempts.computeIfAbsent(text, k -> new AtomicInteger()).incrementAndGet();
                good = attempt > times.getIntValue(text);
            }
            JSONObject event = describe(message);
            event.put("ev", "msg");
            event.put("c", consumer);
            event.put("good", good);
            event.put("together", now);
            emit(event);
            together.decrementAndGet();
            return good;
        }
    }

    private static JSONObject describe(MessageExt message) {
        JSONObject out = new JSONObject();
        byte[] body = message.getBody();
        if (body.length <= INLINE_BODY_MAX) {
            out.put("b64", Base64.getEncoder().encodeToString(body));
        }
        out.put("len", body.length);
        out.put("sha256", sha256(body));
        out.put("topic", message.getTopic());
        out.put("tag", message.getTags());
        out.put("keys", message.getKeys());
        out.put("props", new JSONObject(new HashMap<>(message.getProperties())));
        out.put("flag", message.getFlag());
        out.put("queue", message.getQueueId());
        out.put("offset", message.getQueueOffset());
        out.put("reconsume", message.getReconsumeTimes());
        out.put("msg_id", message.getMsgId());
        out.put("born", message.getBornTimestamp());
        out.put("stored", message.getStoreTimestamp());
        out.put("store_size", message.getStoreSize());
        out.put("at", System.currentTimeMillis());
        return out;
    }

    private static String sha256(byte[] body) {
        try {
            StringBuilder out = new StringBuilder();
            for (byte b : MessageDigest.getInstance("SHA-256").digest(body)) {
                out.append(String.format("%02x", b));
            }
            return out.toString();
        } catch (java.security.NoSuchAlgorithmException why) {
            throw new IllegalStateException(why);
        }
    }

    // ---- look-ups

    private JSONObject query(JSONObject c) throws Exception {
        DefaultMQProducer producer = producers.get(c.getString("producer"));
        JSONObject answer = new JSONObject();
        String topic = c.getString("topic");
        switch (c.getString("by")) {
            case "key": {
                JSONArray found = new JSONArray();
                long now = System.currentTimeMillis();
                for (MessageExt message : producer
                    .queryMessage(topic, c.getString("key"), 64, now - 3_600_000, now + 60_000).getMessageList()) {
                    found.add(describe(message));
                }
                answer.put("found", found);
                break;
            }
            case "id":
                answer.put("found", describe(producer.viewMessage(topic, c.getString("id"))));
                break;
            case "offsets": {
                JSONObject offsets = new JSONObject();
                for (MessageQueue queue : producer.fetchPublishMessageQueues(topic)) {
                    JSONObject one = new JSONObject();
                    one.put("min", producer.minOffset(queue));
                    one.put("max", producer.maxOffset(queue));
                    one.put("at", producer.searchOffset(queue, c.getLongValue("time")));
                    offsets.put(String.valueOf(queue.getQueueId()), one);
                }
                answer.put("offsets", offsets);
                break;
            }
            default:
                throw new IllegalArgumentException("no such query: " + c.getString("by"));
        }
        return answer;
    }
}
