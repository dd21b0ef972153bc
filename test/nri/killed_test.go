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

// handoverSocket is the plugin's, in the directory of --handover.
const handoverSocket = "rdma"

// moment is when a process is killed: before or after a message between the two, or, where that is 0, some time after
// SIGTERM.
type moment struct {
	message int
	passed  bool
	after   time.Duration
	// sparesState: nobody is stopped while the state passes. The process that gives takes it back where it is slow; what
	// stands between would then keep the byte that commits, which the kernel refuses where nobody does.
	sparesState bool
}

// SIGKILL of either side of a handover, at each message and at random times: a plugin is registered again, and nothing
// is stuck.
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
// then, and whether the moment came.
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
	case told: // the old process ends, and another is started in the new one's place
		old.awaitEnd(t)
		p = n.start(t, n.handover...)
	default:
		p = old
	}
	await.Success(t, stuck, what+"registered again", func() error { return p.says(registered) })
	n.goesOn(t, true)
	return p, kill.done()
}

// blow is what hits one of the two processes of an upgrade at a moment.
type blow struct {
	next    *plugin       // the new process
	strike  func()        // deals the blow, once
	struck  chan struct{} // closed when it is dealt
	reached atomic.Bool   // the moment has come
	leave   func()        // as of standBetween
}

func (b *blow) done() bool {
	select {
	case <-b.struck:
		return true
	default:
		return false
	}
}

// strike starts a process that is to take over from an old one, and deals one of both a blow at a moment. It returns
// when the new process waits, or was struck.
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

// standBetween takes the place of the registered process at the handover socket, passes on what it and a process that
// comes say to each other, and kills one of them at a moment, which it reports before. A process that is registered
// then takes the place itself. Once leave has returned, a moment that has not come does not come any more.
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
	listener.SetUnlinkOnClose(false) // another may listen there by then
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
			state = state || with > 0 // a large one comes in pieces
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
			if err != nil { // nobody listens, here neither
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

// forward passes a message on, with the file descriptors in it, and keeps none of them.
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
