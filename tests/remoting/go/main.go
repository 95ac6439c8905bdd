// A process with RocketMQ's Go client, driven by JSON lines: a command a line on stdin, a reply a line on stdout.
//
// In: {"id", "command", and its arguments}. Out: {"id", "result"} or {"id", "error"}. Always: commands run side by side;
// the end of stdin ends the process. Not here: what is right, which the tests in Python say.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"sync"
	_ "unsafe"

	"github.com/apache/rocketmq-client-go/v2/rlog"
)

// The client has no option for how it writes frames' headers: 0 is JSON, 1 RocketMQ's binary form.
//
//go:linkname codec github.com/apache/rocketmq-client-go/v2/internal/remote.codecType
var codec byte

// request is a command with all arguments that any of them takes.
type request struct {
	ID            int                 `json:"id"`
	Command       string              `json:"command"`
	Names         string              `json:"names"`
	Group         string              `json:"group"`
	Topic         string              `json:"topic"`
	How           string              `json:"how"`
	Tags          string              `json:"tags"`
	Count         int                 `json:"count"`
	Wanted        int                 `json:"wanted"`
	Members       int                 `json:"members"`
	Fail          string              `json:"fail"`
	Times         int                 `json:"times"`
	MaxReconsume  int32               `json:"max_reconsume_times"`
	TimeoutMS     int                 `json:"timeout_ms"`
	LingerMS      int                 `json:"linger_ms"`
	BodyBytes     int                 `json:"body_bytes"`
	Plans         map[string][]string `json:"plans"`
	Serialization byte                `json:"serialization"`
}

var commands = map[string]func(request) (any, error){
	"produce":  produce,
	"transact": transact,
	"release":  release,
	"push":     push,
	"codec": func(given request) (any, error) {
		codec = given.Serialization
		return nil, nil
	},
}

func main() {
	rlog.SetLogLevel("error")
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 16<<20)
	var writing sync.Mutex
	for lines.Scan() {
		line := append([]byte(nil), lines.Bytes()...)
		go func() {
			reply, _ := json.Marshal(run(line))
			writing.Lock()
			defer writing.Unlock()
			fmt.Println(string(reply))
		}()
	}
}

func run(line []byte) map[string]any {
	var given request
	if err := json.Unmarshal(line, &given); err != nil {
		return map[string]any{"id": given.ID, "error": err.Error()}
	}
	command, known := commands[given.Command]
	if !known {
		return map[string]any{"id": given.ID, "error": "no command " + given.Command}
	}
	result, err := command(given)
	if err != nil {
		return map[string]any{"id": given.ID, "error": err.Error()}
	}
	return map[string]any{"id": given.ID, "result": result}
}
