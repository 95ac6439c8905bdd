package main

import (
	"context"
	"os"
	"time"

	rocketmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

var resolutions = map[string]rocketmq.TransactionResolution{
	"COMMIT": rocketmq.COMMIT, "ROLLBACK": rocketmq.ROLLBACK, "UNKNOWN": rocketmq.UNKNOWN,
}

// The client takes its use of TLS from a variable of its package.
func configuration(facts Facts) *rocketmq.Config {
	rocketmq.EnableSsl = facts.TLS
	account := &credentials.SessionCredentials{AccessKey: facts.AccessKey, AccessSecret: facts.SecretKey}
	return &rocketmq.Config{Endpoint: facts.Endpoints, ConsumerGroup: facts.Group, Credentials: account}
}

func startProducer(facts Facts) (any, error) {
	seen := &log{}
	options := []rocketmq.ProducerOption{rocketmq.WithTopics(facts.Topics...)}
	if facts.Answers != nil {
		options = append(options, rocketmq.WithTransactionChecker(&rocketmq.TransactionChecker{
			Check: func(message *rocketmq.MessageView) rocketmq.TransactionResolution {
				return resolutions[nextAnswer(facts.Answers, seen, string(message.GetBody()))]
			},
		}))
	}
	producer, problem := rocketmq.NewProducer(configuration(facts), options...)
	if problem != nil {
		return nil, problem
	}
	if problem := producer.Start(); problem != nil {
		return nil, problem
	}
	return hold(producer, seen), nil
}

// The answer to a check, by the body; the last one is repeated.
func nextAnswer(answers map[string][]string, seen *log, body string) string {
	before := seen.count(body)
	seen.add(map[string]any{"body": body})
	said := answers[body]
	if len(said) == 0 {
		return "UNKNOWN"
	}
	return said[min(before, len(said)-1)]
}

func messageOf(facts Facts) *rocketmq.Message {
	message := &rocketmq.Message{Topic: facts.Topic, Body: []byte(facts.Body)}
	if facts.BodyBytes > 0 {
		message.Body = make([]byte, facts.BodyBytes)
	}
	if facts.Tag != "" {
		message.SetTag(facts.Tag)
	}
	if len(facts.Keys) > 0 {
		message.SetKeys(facts.Keys...)
	}
	for name, value := range facts.Properties {
		message.AddProperty(name, value)
	}
	if facts.MessageGroup != "" {
		message.SetMessageGroup(facts.MessageGroup)
	}
	if facts.DeliverMs > 0 {
		message.SetDelayTimestamp(time.UnixMilli(facts.DeliverMs))
	}
	return message
}

func send(facts Facts) (any, error) {
	receipts, problem := heldBy(facts).client.(rocketmq.Producer).Send(context.Background(), messageOf(facts))
	if problem != nil {
		return nil, problem
	}
	return map[string]string{"message_id": receipts[0].MessageID}, nil
}

func transact(facts Facts) (any, error) {
	producer := heldBy(facts).client.(rocketmq.Producer)
	transaction := producer.BeginTransaction()
	receipts, problem := producer.SendWithTransaction(context.Background(), messageOf(facts), transaction)
	if problem != nil {
		return nil, problem
	}
	switch facts.End {
	case "COMMIT":
		problem = transaction.Commit()
	case "ROLLBACK":
		problem = transaction.RollBack()
	}
	return map[string]string{"message_id": receipts[0].MessageID}, problem
}

func checks(facts Facts) (any, error) {
	bodies := []any{}
	for _, one := range heldBy(facts).log.all() {
		bodies = append(bodies, one["body"])
	}
	return bodies, nil
}

func init() {
	// It writes its log below this folder.
	if home, problem := os.UserHomeDir(); problem == nil {
		os.Setenv("rocketmq.client.logRoot", home)
		rocketmq.ResetLogger()
	}
}
