// A process with RocketMQ's Go client for gRPC, driven by JSON lines: a command a line on stdin, a reply a line on stdout.
//
// In: {"id", "command", and its arguments}. Out: {"id", "result"}, or {"id", "error", "code"}. Always: commands run
// concurrently; the end of stdin ends the process. Not here: what is right, which the scenarios decide.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"sync"

	rocketmq "github.com/apache/rocketmq-clients/golang/v5"
	protocol "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
)

// Facts are the arguments of all commands.
type Facts struct {
	ID           int                 `json:"id"`
	Command      string              `json:"command"`
	Handle       int                 `json:"handle"`
	Number       int                 `json:"number"`
	Endpoints    string              `json:"endpoints"`
	TLS          bool                `json:"tls"`
	AccessKey    string              `json:"access_key"`
	SecretKey    string              `json:"secret_key"`
	Topics       []string            `json:"topics"`
	Answers      map[string][]string `json:"answers"`
	Topic        string              `json:"topic"`
	Tags         string              `json:"tags"`
	SQL          string              `json:"sql"`
	Group        string              `json:"group"`
	Body         string              `json:"body"`
	BodyBytes    int                 `json:"body_bytes"`
	Tag          string              `json:"tag"`
	Keys         []string            `json:"keys"`
	Properties   map[string]string   `json:"properties"`
	MessageGroup string              `json:"message_group"`
	DeliverMs    int64               `json:"deliver_ms"`
	End          string              `json:"end"`
	AwaitS       int                 `json:"await_s"`
	InvisibleS   int                 `json:"invisible_s"`
	Max          int32               `json:"max"`
	Fail         map[string]int      `json:"fail"`
}

var commands = map[string]func(Facts) (any, error){
	"producer.start":    startProducer,
	"producer.send":     send,
	"producer.transact": transact,
	"producer.checks":   checks,
	"simple.start":      startSimple,
	"simple.receive":    receive,
	"simple.ack":        ack,
	"simple.change":     change,
	"push.start":        startPush,
	"push.received":     received,
	"stop":              stop,
}

// A held is a client with what it has seen.
type held struct {
	client any
	log    *log
}

var (
	lock    sync.Mutex
	clients = map[int]held{}
	handles int
)

func nextHandle() int {
	lock.Lock()
	defer lock.Unlock()
	handles++
	return handles
}

func hold(client any, seen *log) int {
	handle := nextHandle()
	lock.Lock()
	defer lock.Unlock()
	clients[handle] = held{client, seen}
	return handle
}

func heldBy(facts Facts) held {
	lock.Lock()
	defer lock.Unlock()
	return clients[facts.Handle]
}

func stop(facts Facts) (any, error) {
	stoppable, ok := heldBy(facts).client.(interface{ GracefulStop() error })
	if !ok {
		return nil, fmt.Errorf("no such handle: %d", facts.Handle)
	}
	return nil, stoppable.GracefulStop()
}

// A refusal of the start has its code only in its text.
var codeInText = regexp.MustCompile(`CODE: ([A-Z_]+)`)

func answer(facts Facts) map[string]any {
	reply := map[string]any{"id": facts.ID}
	result, problem := commands[facts.Command](facts)
	if problem == nil {
		reply["result"] = result
		return reply
	}
	reply["error"], reply["code"] = problem.Error(), nil
	if status, ok := rocketmq.AsErrRpcStatus(problem); ok {
		reply["code"] = status.Code
	} else if found := codeInText.FindStringSubmatch(problem.Error()); found != nil {
		reply["code"] = protocol.Code_value[found[1]]
	}
	return reply
}

func main() {
	// What the client prints must not appear between replies.
	out := os.Stdout
	os.Stdout = os.Stderr
	var writing sync.Mutex
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var facts Facts
		if problem := json.Unmarshal(lines.Bytes(), &facts); problem != nil {
			panic(problem)
		}
		go func() {
			line, problem := json.Marshal(answer(facts))
			if problem != nil {
				panic(problem)
			}
			writing.Lock()
			defer writing.Unlock()
			fmt.Fprintln(out, string(line))
		}()
	}
}
