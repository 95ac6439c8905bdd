// Push consumers: concurrent, orderly, or broadcasting; with messages that fail as often as told.
package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
)

// received is what members were handed, failed ones too.
type received struct {
	lock   sync.Mutex
	all    []map[string]any
	failed map[string]int
}

func (r *received) note(given request, member int, message *primitive.MessageExt) bool {
	r.lock.Lock()
	defer r.lock.Unlock()
	keys := message.GetKeys()
	fails := given.Fail != "" && keys == given.Fail && r.failed[keys] < given.Times
	if fails {
		r.failed[keys]++
	}
	r.all = append(r.all, map[string]any{
		"body": string(message.Body), "keys": keys, "tags": message.GetTags(), "topic": message.Topic, "member": member,
		"queue_id": message.Queue.QueueId, "queue_offset": message.QueueOffset, "failed": fails,
		"reconsume_times": message.ReconsumeTimes,
	})
	return !fails
}

func (r *received) count() int {
	r.lock.Lock()
	defer r.lock.Unlock()
	return len(r.all)
}

// push consumes until `wanted` messages were handed over, or the time is over; and lingers, for what must not come.
func push(given request) (any, error) {
	found := &received{all: []map[string]any{}, failed: map[string]int{}}
	for member := 0; member < max(1, given.Members); member++ {
		one, err := start(given, member, found)
		if err != nil {
			return nil, err
		}
		defer one.Shutdown()
	}
	end := time.Now().Add(time.Duration(given.TimeoutMS) * time.Millisecond)
	for found.count() < given.Wanted && time.Now().Before(end) {
		time.Sleep(20 * time.Millisecond)
	}
	time.Sleep(time.Duration(given.LingerMS) * time.Millisecond)
	found.lock.Lock()
	defer found.lock.Unlock()
	return found.all, nil
}

func start(given request, member int, found *received) (rocketmq.PushConsumer, error) {
	model, later := consumer.Clustering, consumer.ConsumeRetryLater
	if given.How == "broadcast" {
		model = consumer.BroadCasting
	}
	if given.How == "orderly" {
		later = consumer.SuspendCurrentQueueAMoment
	}
	chosen := []consumer.Option{
		consumer.WithNameServer(primitive.NamesrvAddr{given.Names}),
		consumer.WithGroupName(given.Group),
		consumer.WithInstance(fmt.Sprintf("%s-%d-%d", given.Group, given.ID, member)),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
		consumer.WithConsumerModel(model),
		consumer.WithConsumerOrder(given.How == "orderly"),
	}
	if given.MaxReconsume != 0 {
		chosen = append(chosen, consumer.WithMaxReconsumeTimes(given.MaxReconsume))
	}
	one, err := rocketmq.NewPushConsumer(chosen...)
	if err != nil {
		return nil, err
	}
	selector := consumer.MessageSelector{Type: consumer.TAG, Expression: given.Tags}
	handle := func(ctx context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		well := true
		for _, message := range messages {
			well = found.note(given, member, message) && well
		}
		if well {
			return consumer.ConsumeSuccess, nil
		}
		if concurrently, known := primitive.GetConcurrentlyCtx(ctx); known {
			concurrently.DelayLevelWhenNextConsume = 1
		}
		return later, nil
	}
	if err := one.Subscribe(given.Topic, selector, handle); err != nil {
		return nil, err
	}
	return one, one.Start()
}
