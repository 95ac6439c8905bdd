// Producers: messages one by one, in batches, without an answer; transactions that end as planned.
package main

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

func options(given request) []producer.Option {
	return []producer.Option{
		producer.WithNameServer(primitive.NamesrvAddr{given.Names}),
		producer.WithGroupName(given.Group),
		producer.WithInstanceName(fmt.Sprintf("%s-%d", given.Group, given.ID)),
		producer.WithSendMsgTimeout(15 * time.Second),
	}
}

// produce sends `count` messages by `how`: bodies are their numbers, tags t0, t1, t2 in turns, keys k0, k1, …
func produce(given request) (any, error) {
	sender, err := rocketmq.NewProducer(options(given)...)
	if err != nil {
		return nil, err
	}
	if err := sender.Start(); err != nil {
		return nil, err
	}
	defer sender.Shutdown()
	ids, problems := []string{}, []string{}
	var lock sync.Mutex
	note := func(result *primitive.SendResult, err error) {
		lock.Lock()
		defer lock.Unlock()
		if err != nil {
			problems = append(problems, err.Error())
		} else if result.Status != primitive.SendOK {
			problems = append(problems, fmt.Sprint(result.Status))
		} else {
			ids = append(ids, result.MsgID)
		}
	}
	ctx := context.Background()
	messages := numbered(given)
	switch given.How {
	case "batch":
		note(sender.SendSync(ctx, messages...))
	case "async":
		var left sync.WaitGroup
		for _, message := range messages {
			left.Add(1)
			done := func(_ context.Context, result *primitive.SendResult, err error) {
				note(result, err)
				left.Done()
			}
			if err := sender.SendAsync(ctx, done, message); err != nil {
				note(nil, err)
				left.Done()
			}
		}
		left.Wait()
	case "oneway":
		for _, message := range messages {
			if err := sender.SendOneWay(ctx, message); err != nil {
				note(nil, err)
			}
		}
		// The server reads a connection in order, so its answer shows that it has read all of them.
		if _, err := sender.SendSync(ctx, primitive.NewMessage(given.Topic+"-after", []byte("after"))); err != nil {
			problems = append(problems, err.Error())
		}
	default:
		for _, message := range messages {
			note(sender.SendSync(ctx, message))
		}
	}
	return map[string]any{"ids": ids, "errors": problems}, nil
}

func numbered(given request) []*primitive.Message {
	messages := make([]*primitive.Message, given.Count)
	for number := range messages {
		body := []byte(fmt.Sprint(number))
		body = append(body, bytes.Repeat([]byte("."), max(0, given.BodyBytes-len(body)))...)
		message := primitive.NewMessage(given.Topic, body)
		messages[number] = message.WithTag(fmt.Sprintf("t%d", number%3)).WithKeys([]string{fmt.Sprintf("k%d", number)})
	}
	return messages
}

// planned answers by its message's body: the first answer is the local transaction's, the next ones its checks'.
type planned struct {
	lock    sync.Mutex
	plans   map[string][]string
	checked map[string]int
}

func (p *planned) ExecuteLocalTransaction(message *primitive.Message) primitive.LocalTransactionState {
	return p.next(string(message.Body))
}

func (p *planned) CheckLocalTransaction(message *primitive.MessageExt) primitive.LocalTransactionState {
	p.lock.Lock()
	p.checked[string(message.Body)]++
	p.lock.Unlock()
	return p.next(string(message.Body))
}

func (p *planned) next(name string) primitive.LocalTransactionState {
	p.lock.Lock()
	defer p.lock.Unlock()
	answers := p.plans[name]
	if len(answers) == 0 {
		return primitive.UnknowState
	}
	if len(answers) > 1 { // The last answer holds for all later checks.
		p.plans[name] = answers[1:]
	}
	switch answers[0] {
	case "COMMIT":
		return primitive.CommitMessageState
	case "ROLLBACK":
		return primitive.RollbackMessageState
	}
	return primitive.UnknowState
}

// released receives a value when the producer of `transact` may be shut down.
var released = make(chan struct{})

// release ends `transact`.
func release(request) (any, error) {
	released <- struct{}{}
	return nil, nil
}

// transact sends a transaction for each of `plans`, and answers their checks until it is released, or the time is over.
func transact(given request) (any, error) {
	listener := &planned{plans: given.Plans, checked: map[string]int{}}
	names := make([]string, 0, len(given.Plans))
	for name := range given.Plans {
		names = append(names, name)
	}
	sender, err := rocketmq.NewTransactionProducer(listener, options(given)...)
	if err != nil {
		return nil, err
	}
	if err := sender.Start(); err != nil {
		return nil, err
	}
	defer sender.Shutdown()
	ids := map[string]string{}
	for _, name := range names {
		message := primitive.NewMessage(given.Topic, []byte(name))
		if len(given.Plans[name]) == 1 { // It ends at once, and is not checked, however long that takes.
			message.WithProperty("CHECK_IMMUNITY_TIME_IN_SECONDS", "60")
		}
		result, err := sender.SendMessageInTransaction(context.Background(), message)
		if err != nil {
			return nil, err
		}
		ids[name] = result.TransactionID
	}
	// Its last answer is sent after the listener has given it, so only the server knows when all has ended.
	select {
	case <-released:
	case <-time.After(time.Duration(given.TimeoutMS) * time.Millisecond):
	}
	listener.lock.Lock()
	defer listener.lock.Unlock()
	return map[string]any{"ids": ids, "checked": listener.checked}, nil
}
