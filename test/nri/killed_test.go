// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package nri

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdma-spec/rdma-spec/test/testing/await"
)

// handoverSocket is the name of the plugin's socket in the directory of --handover.
const handoverSocket = "rdma"

// moment is when a process is killed: before or after a message between the two processes or, if the message is 0, some
// time after SIGTERM.
type moment struct {
	message int
	passed  bool
	after   time.Duration
	// sparesState means that no process is stopped while the state is sent. If the other process is slow, the owner takes
	// the connection back. The test's relay between the two would then keep the byte that completes the handover, which
	// the kernel rejects without a relay.
	sparesState bool
}

// Either side of a handover receives SIGKILL, at each message and at random times. Afterwards, a plugin is registered,
// and nothing is stuck.
func TestKilledDuringAHandover(t *testing.T) {
	eachVersion(t, func(t *testing.T, runtime string) {
		n := newNode(t, runtime)
		p := n.owner(t, n.handover...)
		n.load(t)
		for _, old := range []bool{true, false} {
			for _, passed := range []bool{false, true} {
				for message, reached := 1, true; reached; message++ {
					if p, reached = n.killDuring(t, p, old, moment{message: message, passed: passed}); !reached && message == 1 {
						t.Fatal("no message passes the handover socket: the test shows nothing")
					}
				}
			}
			for range *rounds {
				p, _ = n.killDuring(t, p, old, moment{after: time.Duration(n.random.Int64N(int64(20 * time.Millisecond)))})
			}
		}
		n.judge(t, false)
	})
}

// killDuring upgrades a plugin, and kills it or the new process at a moment. It returns the plugin that is registered
// afterwards, and whether the moment was reached.
func (n *node) killDuring(t *testing.T, old *plugin, killOld bool, at moment) (*plugin, bool) {
	t.Helper()
	what := fmt.Sprintf("%+v, the old process: %t: ", at, killOld)
	kill := n.strike(t, what, old, killOld, at, (*plugin).kill)
	next, told := kill.next, !kill.done()
	if told {
		old.terminate()
		if at.message == 0 {
			time.AfterFunc(at.after, kill.strike)
			await.Receive(t, stuck, what+"killed", kill.struck)
		}
		await.That(t, stuck, what+"handed over, or killed", func() bool { return kill.done() || next.says(registered) == nil })
		kill.leave()
		if kill.reached.Load() { // the new process may be registered just before it is killed
			await.Receive(t, stuck, what+"killed", kill.struck)
		}
	}
	p := next
	switch {
	case !kill.done() || killOld:
		old.awaitEnd(t)
	case told: // the old process ends, and another process is started instead of the new one
		old.awaitEnd(t)
		p = n.start(t, n.handover...)
	default:
		p = old
	}
	await.Success(t, stuck, what+"registered again", func() error { return p.says(registered) })
	n.goesOn(t, true)
	return p, kill.done()
}

// blow is a signal to one of the two processes of an upgrade at a moment.
type blow struct {
	next    *plugin       // the new process
	strike  func()        // sends the signal, once
	struck  chan struct{} // closed after the signal was sent
	reached atomic.Bool   // the moment was reached
	leave   func()        // the function that standBetween returned
}

func (b *blow) done() bool {
	select {
	case <-b.struck:
		return true
	default:
		return false
	}
}

// strike starts a process that is to take over from an old one, and calls do for one of them at a moment. It returns
// when the new process is waiting, or do was called.
func (n *node) strike(t *testing.T, what string, old *plugin, strikeOld bool, at moment, do func(*plugin)) *blow {
	t.Helper()
	victim, b := make(chan *plugin, 1), &blow{struck: make(chan struct{})}
	b.strike = sync.OnceFunc(func() {
		do(<-victim)
		close(b.struck)
	})
	b.leave = n.standBetween(t, at, &b.reached, b.strike)
	b.next = n.start(t, n.handover...)
	victim <- map[bool]*plugin{true: old, false: b.next}[strikeOld]
	await.That(t, stuck, what+"waiting, or struck", func() bool { return b.done() || b.next.says(waiting) == nil })
	return b
}

// standBetween listens at the handover socket instead of the registered process, and relays the messages between that
// process and a new one. At a moment, it sets reached, and then calls kill. A process that is registered afterwards
// listens at the socket itself. After leave has returned, kill is no longer called.
func (n *node) standBetween(t *testing.T, at moment, reached *atomic.Bool, kill func()) (leave func()) {
	t.Helper()
	front := &net.UnixAddr{Name: filepath.Join(n.handover[1], handoverSocket), Net: "unix"}
	back := &net.UnixAddr{Name: fmt.Sprintf("%s.behind-%d", front.Name, len(n.plugins)), Net: "unix"}
	if err := os.Rename(front.Name, back.Name); err != nil {
		t.Fatal(err)
	}
	listener, err := net.ListenUnix("unix", front)
	if err != nil {
		t.Fatal(err)
	}
	listener.SetUnlinkOnClose(false) // another process may listen there by then
	t.Cleanup(func() { _ = listener.Close() })
	var mu sync.Mutex
	messages := 0
	pass := func(to, from *net.UnixConn) {
		defer func() { _, _ = to.CloseWrite(), from.CloseRead() }() // nothing is lost with them
		state := false
		for data, rights := make([]byte, 1<<20), make([]byte, 1<<10); ; {
			length, with, _, _, err := from.ReadMsgUnix(data, rights)
			if length == 0 || err != nil {
				return
			}
			state = state || with > 0 // a large state arrives in several pieces
			mu.Lock()
			messages++
			here := messages == at.message
			if here {
				reached.Store(true)
			}
			here = here && (!state || !at.sparesState)
			if here && !at.passed {
				kill()
			}
			err = forward(to, data[:length], rights[:with])
			if here {
				kill()
			}
			mu.Unlock()
			if err != nil {
				return
			}
		}
	}
	connect := func(near, far *net.UnixConn) {
		var both sync.WaitGroup
		both.Go(func() { pass(far, near) })
		both.Go(func() { pass(near, far) })
		both.Wait()
		_, _ = near.Close(), far.Close()
	}
	go func() {
		for {
			near, err := listener.AcceptUnix()
			if err != nil {
				return
			}
			far, err := net.DialUnix("unix", nil, back)
			if err != nil { // no process listens, so neither does the relay
				_, _ = near.Close(), listener.Close()
				return
			}
			go connect(near, far)
		}
	}()
	return func() {
		mu.Lock()
		defer mu.Unlock()
		at.message = 0
	}
}

// forward passes on a message with its file descriptors, and keeps no copies of them.
func forward(to *net.UnixConn, data, rights []byte) error {
	messages, err := unix.ParseSocketControlMessage(rights)
	if err != nil {
		return err
	}
	for _, m := range messages {
		fds, err := unix.ParseUnixRights(&m)
		if err != nil {
			return err
		}
		for _, fd := range fds {
			defer func() { _ = unix.Close(fd) }() // the message has a copy
		}
	}
	_, _, err = to.WriteMsgUnix(data, rights, nil)
	return err
}
