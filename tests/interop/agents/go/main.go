// Drives rocketmq-client-go for the interop suite: takes one JSON command a line on standard input, answers with one
// JSON line each on standard output, and reports every consumed message as an event line. The commands and events are
// described in tests/interop/README.md. It ends when its standard input does.
package main

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/admin"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

const inlineBodyMax = 1024

type outMessage struct {
	Topic string            `json:"topic"`
	B64   string            `json:"b64"`
	Tag   string            `json:"tag"`
	Keys  string            `json:"keys"`
	Flag  int32             `json:"flag"`
	Delay int               `json:"delay"`
	Queue *int              `json:"queue"`
	Props map[string]string `json:"props"`
}

type command struct {
	Rq           int               `json:"rq"`
	Op           string            `json:"op"`
	Name         string            `json:"name"`
	Group        string            `json:"group"`
	Producer     string            `json:"producer"`
	How          string            `json:"how"`
	Topic        string            `json:"topic"`
	Queues       int               `json:"queues"`
	Broker       string            `json:"broker"`
	Count        int               `json:"count"`
	Prefix       string            `json:"prefix"`
	TimeoutMs    int               `json:"timeout_ms"`
	Retries      *int              `json:"retries"`
	CompressOver int               `json:"compress_over"`
	Messages     []outMessage      `json:"messages"`
	Topics       map[string]string `json:"topics"`
	Model        string            `json:"model"`
	Mode         string            `json:"mode"`
	From         string            `json:"from"`
	MaxReconsume *int32            `json:"max_reconsume"`
	RetryLevel   int               `json:"retry_level"`
	Fail         map[string]int    `json:"fail"`
}

type object = map[string]interface{}

var (
	nameServer []string
	outLock    sync.Mutex
	tableLock  sync.Mutex
	producers  = map[string]rocketmq.Producer{}
	consumers  = map[string]rocketmq.PushConsumer{}
)

func emit(line object) {
	text, err := json.Marshal(line)
	if err != nil {
		panic(err)
	}
	outLock.Lock()
	defer outLock.Unlock()
	os.Stdout.Write(append(text, '\n'))
}

func main() {
	rlog.SetLogLevel("error")
	nameServer = []string{os.Args[1]}
	in := bufio.NewReaderSize(os.Stdin, 1<<20)
	for {
		line, err := in.ReadBytes('\n')
		if err == io.EOF {
			return
		}
		if err != nil {
			panic(err)
		}
		var c command
		if err := json.Unmarshal(line, &c); err != nil {
			panic(err)
		}
		go answer(c)
	}
}

func answer(c command) {
	out, err := run(c)
	if err != nil {
		out = object{"error": err.Error()}
	} else if out == nil {
		out = object{}
	}
	out["rq"] = c.Rq
	emit(out)
}

func run(c command) (object, error) {
	switch c.Op {
	case "producer":
		return startProducer(c)
	case "stop_producer":
		return nil, producerNamed(c.Name).Shutdown()
	case "create_topic":
		a, err := admin.NewAdmin(admin.WithResolver(primitive.NewPassthroughResolver(nameServer)))
		if err != nil {
			return nil, err
		}
		defer a.Close()
		return nil, a.CreateTopic(context.Background(), admin.WithTopicCreate(c.Topic),
			admin.WithBrokerAddrCreate(c.Broker), admin.WithReadQueueNums(c.Queues), admin.WithWriteQueueNums(c.Queues))
	case "send":
		return send(c)
	case "flood":
		return flood(c)
	case "consumer":
		return nil, startConsumer(c)
	case "stop_consumer":
		tableLock.Lock()
		stopped := consumers[c.Name]
		tableLock.Unlock()
		return nil, stopped.Shutdown()
	}
	return nil, fmt.Errorf("no such op: %s", c.Op)
}

// chosenQueue sends a message that names its queue there, and the others round robin.
type chosenQueue struct{ others producer.QueueSelector }

func (s chosenQueue) Select(
	m *primitive.Message, queues []*primitive.MessageQueue, last string,
) *primitive.MessageQueue {
	if m.Queue == nil {
		return s.others.Select(m, queues, last)
	}
	for _, queue := range queues {
		if queue.QueueId == m.Queue.QueueId {
			return queue
		}
	}
	return nil
}

func startProducer(c command) (object, error) {
	options := []producer.Option{
		producer.WithNsResolver(primitive.NewPassthroughResolver(nameServer)),
		producer.WithGroupName(c.Group),
		producer.WithInstanceName(c.Name),
		producer.WithSendMsgTimeout(10 * time.Second),
		producer.WithQueueSelector(chosenQueue{producer.NewRoundRobinQueueSelector()}),
	}
	if c.Retries != nil {
		options = append(options, producer.WithRetry(*c.Retries))
	}
	if c.CompressOver != 0 {
		options = append(options, producer.WithCompressMsgBodyOverHowmuch(c.CompressOver))
	}
	p, err := rocketmq.NewProducer(options...)
	if err != nil {
		return nil, err
	}
	if err := p.Start(); err != nil {
		return nil, err
	}
	tableLock.Lock()
	defer tableLock.Unlock()
	producers[c.Name] = p
	return nil, nil
}

func producerNamed(name string) rocketmq.Producer {
	tableLock.Lock()
	defer tableLock.Unlock()
	return producers[name]
}

func message(m outMessage) (*primitive.Message, error) {
	body, err := base64.StdEncoding.DecodeString(m.B64)
	if err != nil {
		return nil, err
	}
	out := primitive.NewMessage(m.Topic, body)
	out.Flag = m.Flag
	if m.Tag != "" {
		out.WithTag(m.Tag)
	}
	if m.Keys != "" {
		out.WithKeys([]string{m.Keys})
	}
	if m.Delay != 0 {
		out.WithDelayTimeLevel(m.Delay)
	}
	for name, value := range m.Props {
		out.WithProperty(name, value)
	}
	if m.Queue != nil {
		out.Queue = &primitive.MessageQueue{QueueId: *m.Queue}
	}
	return out, nil
}

func statusName(status primitive.SendStatus) string {
	switch status {
	case primitive.SendOK:
		return "SEND_OK"
	case primitive.SendFlushDiskTimeout:
		return "FLUSH_DISK_TIMEOUT"
	}
	return "STATUS_" + strconv.Itoa(int(status))
}

func result(r *primitive.SendResult) object {
	return object{"status": statusName(r.Status), "msg_id": r.MsgID, "offset_msg_id": r.OffsetMsgID,
		"queue": r.MessageQueue.QueueId, "queue_offset": r.QueueOffset}
}

func send(c command) (object, error) {
	p := producerNamed(c.Producer)
	ctx := context.Background()
	var messages []*primitive.Message
	for _, given := range c.Messages {
		m, err := message(given)
		if err != nil {
			return nil, err
		}
		messages = append(messages, m)
	}
	results := make([]object, 0, len(messages))
	switch c.How {
	case "sync":
		for _, m := range messages {
			r, err := p.SendSync(ctx, m)
			if err != nil {
				return nil, err
			}
			results = append(results, result(r))
		}
	case "oneway":
		for _, m := range messages {
			if err := p.SendOneWay(ctx, m); err != nil {
				return nil, err
			}
		}
	case "batch":
		r, err := p.SendSync(ctx, messages...)
		if err != nil {
			return nil, err
		}
		results = append(results, result(r))
	case "async":
		results = make([]object, len(messages))
		var left sync.WaitGroup
		for i, m := range messages {
			i := i
			left.Add(1)
			err := p.SendAsync(ctx, func(_ context.Context, r *primitive.SendResult, err error) {
				if err != nil {
					results[i] = object{"error": err.Error()}
				} else {
					results[i] = result(r)
				}
				left.Done()
			}, m)
			if err != nil {
				return nil, err
			}
		}
		done := make(chan struct{})
		go func() { left.Wait(); close(done) }()
		select {
		case <-done:
		case <-time.After(30 * time.Second):
			return nil, errors.New("async sends were never answered")
		}
	default:
		return nil, fmt.Errorf("no such way to send: %s", c.How)
	}
	return object{"results": results}, nil
}

// flood runs one sender a queue; each sends its bodies "prefix-queue-number" in order, and each until it is acked.
func flood(c command) (object, error) {
	p := producerNamed(c.Producer)
	deadline := time.Now().Add(time.Duration(c.TimeoutMs) * time.Millisecond)
	var lock sync.Mutex
	var acked int
	repeated := []string{}
	places := [][]interface{}{}
	var senders sync.WaitGroup
	for queue := 0; queue < c.Queues; queue++ {
		queue := queue
		senders.Add(1)
		go func() {
			defer senders.Done()
			for i := 0; i < c.Count/c.Queues; i++ {
				body := fmt.Sprintf("%s-%d-%d", c.Prefix, queue, i)
				for time.Now().Before(deadline) {
					m := primitive.NewMessage(c.Topic, []byte(body))
					m.Queue = &primitive.MessageQueue{QueueId: queue}
					r, err := p.SendSync(context.Background(), m)
					lock.Lock()
					if err == nil && r.Status == primitive.SendOK {
						places = append(places, []interface{}{body, queue, r.QueueOffset})
						lock.Unlock()
						break
					}
					repeated = append(repeated, body)
					lock.Unlock()
					time.Sleep(200 * time.Millisecond)
				}
				lock.Lock()
				acked++
				if acked%500 == 0 {
					emit(object{"ev": "acked", "producer": c.Producer, "count": acked})
				}
				lock.Unlock()
			}
		}()
	}
	senders.Wait()
	return object{"repeated": repeated, "places": places}, nil
}

// failureRule says which messages to fail: body to the number of attempts that fail.
type failureRule struct {
	lock     sync.Mutex
	times    map[string]int
	attempts map[string]int
	busy     map[string]int
}

func (f *failureRule) take(name string, m *primitive.MessageExt) bool {
	place := m.Topic + "/" + strconv.Itoa(m.Queue.QueueId)
	f.lock.Lock()
	f.busy[place]++
	together := f.busy[place]
	good := true
	if times, found := f.times[string(m.Body)]; found {
		f.attempts[string(m.Body)]++
		good = f.attempts[string(m.Body)] > times
	}
	f.lock.Unlock()
	sum := sha256.Sum256(m.Body)
	event := object{
		"ev": "msg", "c": name, "good": good, "together": together, "len": len(m.Body),
		"sha256": hex.EncodeToString(sum[:]), "topic": m.Topic, "tag": m.GetTags(), "keys": m.GetKeys(),
		"props": m.GetProperties(), "flag": m.Flag, "queue": m.Queue.QueueId, "offset": m.QueueOffset,
		"reconsume": m.ReconsumeTimes, "msg_id": m.MsgId, "born": m.BornTimestamp, "stored": m.StoreTimestamp,
		"store_size": m.StoreSize, "at": time.Now().UnixMilli(),
	}
	if len(m.Body) <= inlineBodyMax {
		event["b64"] = base64.StdEncoding.EncodeToString(m.Body)
	}
	emit(event)
	f.lock.Lock()
	f.busy[place]--
	f.lock.Unlock()
	return good
}

func startConsumer(c command) error {
	options := []consumer.Option{
		consumer.WithNsResolver(primitive.NewPassthroughResolver(nameServer)),
		consumer.WithGroupName(c.Group),
		consumer.WithInstance(c.Name),
		consumer.WithConsumerOrder(c.Mode == "orderly"),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
		consumer.WithRebalanceLockInterval(2 * time.Second),
		consumer.WithSuspendCurrentQueueTimeMillis(200 * time.Millisecond),
	}
	if c.From == "last" {
		options = append(options, consumer.WithConsumeFromWhere(consumer.ConsumeFromLastOffset))
	}
	if c.Model == "broadcast" {
		options = append(options, consumer.WithConsumerModel(consumer.BroadCasting))
	}
	if c.MaxReconsume != nil {
		options = append(options, consumer.WithMaxReconsumeTimes(*c.MaxReconsume))
	}
	p, err := rocketmq.NewPushConsumer(options...)
	if err != nil {
		return err
	}
	rule := &failureRule{times: c.Fail, attempts: map[string]int{}, busy: map[string]int{}}
	for topic, expression := range c.Topics {
		selector := consumer.MessageSelector{Type: consumer.TAG, Expression: expression}
		take := func(ctx context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
			good := true
			for _, m := range messages {
				good = rule.take(c.Name, m) && good
			}
			if good {
				return consumer.ConsumeSuccess, nil
			}
			if c.Mode == "orderly" {
				return consumer.SuspendCurrentQueueAMoment, nil
			}
			if concurrent, found := primitive.GetConcurrentlyCtx(ctx); found {
				concurrent.DelayLevelWhenNextConsume = c.RetryLevel
			}
			return consumer.ConsumeRetryLater, nil
		}
		if err := p.Subscribe(topic, selector, take); err != nil {
			return err
		}
	}
	if err := p.Start(); err != nil {
		return err
	}
	tableLock.Lock()
	defer tableLock.Unlock()
	consumers[c.Name] = p
	return nil
}
