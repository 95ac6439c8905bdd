package main

import (
	"context"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-clients/golang/v5"
)

// A log is what a client has seen, in order.
type log struct {
	sync.Mutex
	facts []map[string]any
}

func (l *log) add(facts map[string]any) {
	l.Lock()
	defer l.Unlock()
	l.facts = append(l.facts, facts)
}

func (l *log) all() []map[string]any {
	l.Lock()
	defer l.Unlock()
	return append([]map[string]any{}, l.facts...)
}

func (l *log) count(body string) int {
	times := 0
	for _, one := range l.all() {
		if one["body"] == body {
			times++
		}
	}
	return times
}

var messages sync.Map

func text(value *string) any {
	if value == nil || *value == "" {
		return nil
	}
	return *value
}

func factsOf(message *rocketmq.MessageView) map[string]any {
	return map[string]any{
		"message_id":    message.GetMessageId(),
		"topic":         message.GetTopic(),
		"body":          string(message.GetBody()),
		"tag":           text(message.GetTag()),
		"keys":          message.GetKeys(),
		"properties":    message.GetProperties(),
		"message_group": text(message.GetMessageGroup()),
		"attempt":       message.GetDeliveryAttempt(),
		"at_ms":         time.Now().UnixMilli(),
	}
}

func subscription(facts Facts) map[string]*rocketmq.FilterExpression {
	wanted := rocketmq.SUB_ALL
	if facts.Tags != "" {
		wanted = rocketmq.NewFilterExpression(facts.Tags)
	}
	if facts.SQL != "" {
		wanted = rocketmq.NewFilterExpressionWithType(facts.SQL, rocketmq.SQL92)
	}
	return map[string]*rocketmq.FilterExpression{facts.Topic: wanted}
}

func startSimple(facts Facts) (any, error) {
	consumer, problem := rocketmq.NewSimpleConsumer(configuration(facts),
		rocketmq.WithSimpleAwaitDuration(time.Duration(facts.AwaitS)*time.Second),
		rocketmq.WithSimpleSubscriptionExpressions(subscription(facts)))
	if problem != nil {
		return nil, problem
	}
	if problem := consumer.Start(); problem != nil {
		return nil, problem
	}
	return hold(consumer, &log{}), nil
}

func receive(facts Facts) (any, error) {
	consumer := heldBy(facts).client.(rocketmq.SimpleConsumer)
	views, problem := consumer.Receive(context.Background(), facts.Max, time.Duration(facts.InvisibleS)*time.Second)
	if problem != nil {
		return nil, problem
	}
	found := []map[string]any{}
	for _, view := range views {
		number := nextHandle()
		messages.Store(number, view)
		one := factsOf(view)
		one["number"] = number
		found = append(found, one)
	}
	return found, nil
}

func numbered(facts Facts) *rocketmq.MessageView {
	view, _ := messages.Load(facts.Number)
	return view.(*rocketmq.MessageView)
}

func ack(facts Facts) (any, error) {
	return nil, heldBy(facts).client.(rocketmq.SimpleConsumer).Ack(context.Background(), numbered(facts))
}

func change(facts Facts) (any, error) {
	invisible := time.Duration(facts.InvisibleS) * time.Second
	return nil, heldBy(facts).client.(rocketmq.SimpleConsumer).ChangeInvisibleDuration(numbered(facts), invisible)
}

// Its listener fails a body as often as it was told.
func startPush(facts Facts) (any, error) {
	seen := &log{}
	consumer, problem := rocketmq.NewPushConsumer(configuration(facts),
		rocketmq.WithPushAwaitDuration(5*time.Second),
		rocketmq.WithPushSubscriptionExpressions(subscription(facts)),
		rocketmq.WithPushMessageListener(&rocketmq.FuncMessageListener{
			Consume: func(view *rocketmq.MessageView) rocketmq.ConsumerResult {
				one := factsOf(view)
				body := string(view.GetBody())
				failed := seen.count(body) < facts.Fail[body]
				one["failed"] = failed
				seen.add(one)
				if failed {
					return rocketmq.FAILURE
				}
				return rocketmq.SUCCESS
			},
		}))
	if problem != nil {
		return nil, problem
	}
	if problem := consumer.Start(); problem != nil {
		return nil, problem
	}
	return hold(consumer, seen), nil
}

func received(facts Facts) (any, error) {
	return heldBy(facts).log.all(), nil
}
