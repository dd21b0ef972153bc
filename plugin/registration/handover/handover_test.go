// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package handover

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rdma-spec/rdma-spec/plugin/registration/handover/handovertest"
	"github.com/rdma-spec/rdma-spec/test/testing/await"
	"github.com/rdma-spec/rdma-spec/test/testing/must"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// dir returns the handover directory of a test's processes.
func dir(t *testing.T) string { return filepath.Join(scratch.Dir(t), "made") }

func join(t *testing.T, dir string) (*Owner, *Waiter) {
	t.Helper()
	l, err := newLock(dir, "rdma")
	must.Succeed(t, err)
	l.greetWithin = time.Second
	owner, waiter, err := l.join(t.Context())
	must.Succeed(t, err)
	if owner != nil {
		t.Cleanup(owner.Close)
	} else {
		t.Cleanup(waiter.Close)
	}
	return owner, waiter
}

// owning makes this process the owner, which must not exist yet, and makes an offer.
func owning(t *testing.T, dir string) *Owner {
	t.Helper()
	owner, _ := join(t, dir)
	if owner == nil {
		t.Fatal("another process is the owner")
	}
	offer(t, owner, "first")
	return owner
}

func offer(t *testing.T, o *Owner, text string) {
	t.Helper()
	if err := o.Offer(text); err != nil {
		t.Error(err)
	}
}

// waitingBehind joins as a later process, which has received the offer.
func waitingBehind(t *testing.T, dir string) *Waiter {
	t.Helper()
	_, waiter := join(t, dir)
	if waiter == nil {
		t.Fatal("no process is the owner")
	}
	expectNext(t, waiter, `"first"`, "")
	return waiter
}

func expectNext(t *testing.T, w *Waiter, offer, state string) {
	t.Helper()
	kind, text := Offer, offer
	if state != "" {
		kind, text = State, state
	}
	if got, err := w.Next(t.Context()); got.Kind != kind || string(got.Text) != text || err != nil {
		t.Fatalf("news of kind %d, %.100s, error %v; want %d, %.100s", got.Kind, got.Text, err, kind, text)
	}
}

// expectLeadsTo checks that a word sent over the connection arrives at the runtime's end.
func expectLeadsTo(t *testing.T, connection, runtime *net.UnixConn) {
	t.Helper()
	got := make([]byte, 5)
	if _, err := connection.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(runtime, got); err != nil || string(got) != "hello" {
		t.Errorf("the runtime reads %q, %v", got, err)
	}
}

// patience is how long a test's process may take to take a connection.
const patience = time.Second

// give passes a connection on in the background. The other process must take it within the patience.
func give(o *Owner, connection *net.UnixConn, state json.RawMessage, patience time.Duration) <-chan error {
	given := make(chan error, 1)
	go func() {
		given <- o.Give(connection, state, patience)
		_ = connection.Close()
	}()
	return given
}

func take(t *testing.T, w *Waiter) (*Owner, *net.UnixConn) {
	t.Helper()
	owner, connection, err := w.Accept()
	must.Succeed(t, err)
	t.Cleanup(owner.Close)
	t.Cleanup(func() { _ = connection.Close() })
	w.Close()
	return owner, connection
}

// handsOver passes an owner's connection to a process that waits behind it.
func handsOver(t *testing.T, owner *Owner, waiter *Waiter, connection *net.UnixConn, state string) (*Owner,
	*net.UnixConn) {
	t.Helper()
	given := give(owner, connection, json.RawMessage(state), await.Timeout)
	expectNext(t, waiter, "", state)
	next, inherited := take(t, waiter)
	must.Succeed(t, await.Receive(t, await.Timeout, "given", given))
	return next, inherited
}

// Ten processes take over the connection one after the other, with a large state. The runtime's end of the connection
// does not notice.
func TestGive(t *testing.T) {
	dir := dir(t)
	owner := owning(t, dir)
	connection, runtime := handovertest.Pair(t)
	state := `"` + strings.Repeat("x", 1<<20) + `"`
	for range 10 {
		waiter := waitingBehind(t, dir)
		offer(t, owner, "second")
		expectNext(t, waiter, `"second"`, "")
		next, inherited := handsOver(t, owner, waiter, connection, state)
		owner.Close()
		owner, connection = next, inherited
		expectLeadsTo(t, connection, runtime)
		offer(t, owner, "first")
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the directory: %v, %v", info.Mode(), err)
	}
}

// Of several processes that start at once, one becomes the owner, and all others wait behind it.
func TestJoin_AtOnce(t *testing.T) {
	dir := dir(t)
	var owners atomic.Int32
	var starts sync.WaitGroup
	for range 20 {
		starts.Go(func() {
			if owner, _ := join(t, dir); owner != nil {
				owners.Add(1)
				offer(t, owner, "first")
			}
		})
	}
	starts.Wait()
	if n := owners.Load(); n != 1 {
		t.Errorf("%d owners", n)
	}
}

// An owner that ends without passing the connection on releases the lock, and a waiter gets it.
func TestOwner_Killed(t *testing.T) {
	dir := dir(t)
	owner := owning(t, dir)
	waiter := waitingBehind(t, dir)
	owner.Close()
	if _, err := waiter.Next(t.Context()); err == nil || errors.Is(err, ErrRefused) {
		t.Errorf("the owner is gone: %v", err)
	}
	owning(t, dir) // no other process is the owner
}

// If an owner is killed after it offered the connection, but before a waiter took it, the owner has given away neither
// the connection nor the lock. Both end with it, and the next process must register, because no process can know
// whether the owner had passed them to another one.
func TestGive_OwnerKilled(t *testing.T) {
	dir := dir(t)
	owner := owning(t, dir)
	waiter := waitingBehind(t, dir)
	connection, runtime := handovertest.Pair(t)
	owner.mu.Lock()
	to := owner.waiting[0].UnixConn
	owner.mu.Unlock()
	err := withDescriptor(connection, func(fd int) error {
		return sendWith(to, time.Now().Add(await.Timeout), message{State: json.RawMessage("1")}, fd, int(owner.locked.Fd()))
	})
	must.Succeed(t, err)
	_ = owner.locked.Close() // as the kernel does when a process is killed
	_ = owner.listener.Close()
	_ = to.Close()
	_ = connection.Close()
	expectNext(t, waiter, "", "1")
	if next, inherited, err := waiter.Accept(); next != nil || inherited != nil || err == nil {
		t.Errorf("taken from a process that is gone: %v", err)
	}
	waiter.Close()
	if _, err := runtime.Read(make([]byte, 1)); err == nil {
		t.Error("the runtime does not see the end")
	}
	owning(t, dir) // no other process is the owner
}

// A process that is too slow does not get the connection, even if it continues later. The next process gets it.
func TestGive_SlowWaiter(t *testing.T) {
	dir := dir(t)
	owner := owning(t, dir)
	slow := waitingBehind(t, dir)
	gone := waitingBehind(t, dir)
	quick := waitingBehind(t, dir)
	connection, runtime := handovertest.Pair(t)
	given := give(owner, connection, json.RawMessage("1"), patience)
	expectNext(t, slow, "", "1")
	gone.Close()
	expectNext(t, quick, "", "1")
	_, inherited := take(t, quick)
	must.Succeed(t, await.Receive(t, await.Timeout, "given", given))
	if _, late, err := slow.Accept(); err == nil || late != nil {
		t.Errorf("the slow one has %v, %v", late, err)
	}
	expectLeadsTo(t, inherited, runtime)
}

// If a process ends before it takes the connection, the error does not say that it was slow.
func TestAccept_WaiterEnds(t *testing.T) {
	dir := dir(t)
	owner := owning(t, dir)
	waiter := waitingBehind(t, dir)
	connection, runtime := handovertest.Pair(t)
	given := make(chan error, 1)
	go func() { given <- owner.Give(connection, json.RawMessage("1"), await.Timeout) }()
	expectNext(t, waiter, "", "1")
	waiter.Close()
	if err := await.Receive(t, await.Timeout, "given", given); err == nil || !strings.Contains(err.Error(), "exited before") {
		t.Errorf("given: %v", err)
	}
	expectLeadsTo(t, connection, runtime)
}

// On a busy node, a process may take as long as the previous process's patience.
func TestPatience(t *testing.T) {
	dir := dir(t)
	owner := owning(t, dir)
	waiter := waitingBehind(t, dir)
	connection, runtime := handovertest.Pair(t)
	given := give(owner, connection, json.RawMessage("1"), await.Timeout)
	expectNext(t, waiter, "", "1")
	time.Sleep(patience + patience/2)
	_, inherited := take(t, waiter)
	must.Succeed(t, await.Receive(t, await.Timeout, "given", given))
	expectLeadsTo(t, inherited, runtime)
}

// A waiter whose context is done stops waiting. It can still take a connection that arrives in the meantime, and pass
// it on.
func TestNext_ContextDone(t *testing.T) {
	dir := dir(t)
	owner := owning(t, dir)
	waiter := waitingBehind(t, dir)
	ctx, end := context.WithCancel(t.Context())
	end()
	if _, err := waiter.Next(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("it waits on: %v", err)
	}
	connection, runtime := handovertest.Pair(t)
	_, inherited := handsOver(t, owner, waiter, connection, "1")
	expectLeadsTo(t, inherited, runtime)
}

// If no process takes the connection, the owner keeps it. The lock decides who is the owner, even if something between
// the two processes has taken the byte of acceptance.
func TestGive_NobodyTakes(t *testing.T) {
	var none *Owner
	connection, runtime := handovertest.Pair(t)
	if err := none.Give(connection, nil, patience); err == nil {
		t.Error("given without a lock")
	}
	dir := dir(t)
	owner := owning(t, dir)
	if err := owner.Give(connection, json.RawMessage("1"), patience); err == nil || err.Error() != "no process is "+
		"waiting for the connection" {
		t.Errorf("given: %v", err)
	}
	hangs, deceived := waitingBehind(t, dir), waitingBehind(t, dir)
	if err := owner.Give(connection, json.RawMessage("1"), patience); err == nil || !strings.Contains(err.Error(),
		"did not take over the connection within") {
		t.Errorf("given: %v", err)
	}
	expectLeadsTo(t, connection, runtime)
	owner.Close()
	owning(t, dir)                // no other process is the owner
	expectNext(t, hangs, "", "1") // these processes continue
	expectNext(t, deceived, "", "1")
	_ = deceived.owner.Close()
	deceived.owner, _ = handovertest.Pair(t) // this end takes the byte of acceptance
	for _, w := range []*Waiter{hangs, deceived} {
		if next, late, err := w.Accept(); err == nil || next != nil || late != nil {
			t.Errorf("taken from a process that has ended, beside another owner: %v", err)
		}
	}
}

// If the lock is held but no process listens, Join fails after a moment: the owner was killed, and a process that hangs
// has a copy of the lock. If a process listens but sends nothing, Join fails after a while.
func TestJoin_Hopeless(t *testing.T) {
	dir := dir(t)
	owner := owning(t, dir)
	_ = owner.listener.Close()
	l := owner.lock
	l.greetWithin = time.Hour // which must not matter here
	ctx, cancel := context.WithTimeout(t.Context(), await.Timeout)
	defer cancel()
	began := time.Now()
	_, _, err := l.join(ctx)
	if took := time.Since(began); !errors.Is(err, ErrHangs) || took < listenWithin {
		t.Errorf("%v after %s", err, took)
	}
	owner.Close()
	owning(t, dir) // no other process is the owner
}

// A process that uses another protocol is refused. A process that sends nothing does not keep others from waiting.
func TestNext_otherProtocol(t *testing.T) {
	dir := dir(t)
	owner := owning(t, dir)
	for said, want := range map[string]string{
		`{"protocol":2}`: "the waiting process uses protocol 2, not 1", `{`: "unexpected end of JSON input", "": "i/o timeout",
	} {
		c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: owner.socket, Net: "unix"})
		must.Succeed(t, err)
		if said != "" {
			_, err = c.Write(append([]byte{0, 0, 0, byte(len(said))}, said...))
		}
		must.Succeed(t, err)
		w := &Waiter{owner: c}
		if _, err := w.Next(t.Context()); !errors.Is(err, ErrRefused) || !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("%q: %v, want %s", said, err, want)
		}
		waitingBehind(t, dir).Close()
		w.Close()
	}
}

// A process that connected, but had sent nothing when the owner closed, sees the connection end. Otherwise, it would
// wait forever for the owner's process, which may continue to run.
func TestWelcome_AfterClose(t *testing.T) {
	dir := dir(t)
	owner := owning(t, dir)
	late, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: owner.socket, Net: "unix"})
	must.Succeed(t, err)
	defer late.Close()    //nolint:errcheck // the test is over
	waitingBehind(t, dir) // this waiter connected later and was accepted, so the first one was accepted, too
	owner.Close()
	must.Succeed(t, send(late, message{Protocol: protocol}))
	must.Succeed(t, late.SetReadDeadline(time.Now().Add(await.Timeout)))
	if said, _, err := receive(late); !errors.Is(err, io.EOF) {
		t.Errorf("%+v, error %v; want the end", said, err)
	}
}

// A waiter does not wait for an owner that hangs from the beginning.
func TestNext_OwnerHangs(t *testing.T) {
	dir := dir(t)
	if owner, _ := join(t, dir); owner == nil { // and makes no offer
		t.Fatal("another process is the owner")
	}
	_, waiter := join(t, dir)
	if _, err := waiter.Next(t.Context()); !errors.Is(err, ErrHangs) {
		t.Errorf("no offer: %v", err)
	}
}

// FuzzReceive: whatever a process sends, receive returns one message of bounded size, or an error.
func FuzzReceive(f *testing.F) {
	f.Add([]byte("\x00\x00\x00\x0e{\"protocol\":1}"))
	f.Add([]byte("\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, said []byte) {
		connection, other := handovertest.Pair(t)
		go func() {
			_, _ = other.Write(said) // some is read
			_ = other.Close()
		}()
		_, _, _ = receive(connection) // it returns
	})
}
