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

// dir is where the processes of a test meet.
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

// owning becomes the owner where there is none, with an offer.
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

// waitingBehind joins as a later process, and has received the offer.
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

// expectLeadsTo sends a word over a connection.
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

// give gives a connection in the background, to a process that may take as long as the patience to take it.
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

// handsOver gives a connection of a process to one that waits behind it.
func handsOver(t *testing.T, owner *Owner, waiter *Waiter, connection *net.UnixConn, state string) (*Owner,
	*net.UnixConn) {
	t.Helper()
	given := give(owner, connection, json.RawMessage(state), await.Timeout)
	expectNext(t, waiter, "", state)
	next, inherited := take(t, waiter)
	must.Succeed(t, await.Receive(t, await.Timeout, "given", given))
	return next, inherited
}

// Ten processes take the connection from each other, one after the other, with a large state. The runtime's end never
// sees an end.
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

// Of processes that start at once, one is the owner, and all others wait behind it.
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

// An owner that ends without giving releases the lock to one that waits.
func TestOwner_Killed(t *testing.T) {
	dir := dir(t)
	owner := owning(t, dir)
	waiter := waitingBehind(t, dir)
	owner.Close()
	if _, err := waiter.Next(t.Context()); err == nil || errors.Is(err, ErrRefused) {
		t.Errorf("the owner is gone: %v", err)
	}
	owning(t, dir) // nobody else does
}

// An owner that is killed right after it has offered the connection, and before that is taken, has not given it away,
// nor the lock: both end with it, which costs a registration. Nobody can know that it has not given them to another
// process meanwhile.
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
	_ = owner.locked.Close() // as the kernel does for a process that is killed
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
	owning(t, dir) // nobody else does
}

// A process that is too slow does not get the connection, whenever it goes on. The next one does.
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

// A process that ends before it takes the connection is not said to be slow.
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

// A process on a busy node may take as long as the one before is patient.
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

// A process that is told to end waits no longer, and can still take what is given to it meanwhile, to pass it on.
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

// Where nobody takes it, the connection stays where it is. The lock has the last word on who is the owner, also where
// somebody between the two processes has taken the byte of acceptance.
func TestGive_NobodyTakes(t *testing.T) {
	var none *Owner
	connection, runtime := handovertest.Pair(t)
	if err := none.Give(connection, nil, patience); err == nil {
		t.Error("given without a lock")
	}
	dir := dir(t)
	owner := owning(t, dir)
	if err := owner.Give(connection, json.RawMessage("1"), patience); err == nil || err.Error() != "no process is "+
		"waiting" {
		t.Errorf("given: %v", err)
	}
	hangs, deceived := waitingBehind(t, dir), waitingBehind(t, dir)
	if err := owner.Give(connection, json.RawMessage("1"), patience); err == nil || !strings.Contains(err.Error(),
		"did not take the connection within") {
		t.Errorf("given: %v", err)
	}
	expectLeadsTo(t, connection, runtime)
	owner.Close()
	owning(t, dir)                // nobody else does
	expectNext(t, hangs, "", "1") // they go on
	expectNext(t, deceived, "", "1")
	_ = deceived.owner.Close()
	deceived.owner, _ = handovertest.Pair(t) // which takes the byte of acceptance
	for _, w := range []*Waiter{hangs, deceived} {
		if next, late, err := w.Accept(); err == nil || next != nil || late != nil {
			t.Errorf("taken from a process that has ended, beside another owner: %v", err)
		}
	}
}

// A lock that is held where nobody listens is hopeless after a moment: its owner was killed, and a process that
// hangs has a copy of the lock. One where somebody listens and says nothing is after a while.
func TestJoin_Hopeless(t *testing.T) {
	dir := dir(t)
	owner := owning(t, dir)
	_ = owner.listener.Close()
	l := owner.lock
	l.greetWithin = time.Hour // which it does not wait for
	ctx, cancel := context.WithTimeout(t.Context(), await.Timeout)
	defer cancel()
	began := time.Now()
	_, _, err := l.join(ctx)
	if took := time.Since(began); !errors.Is(err, ErrHangs) || took < listenWithin {
		t.Errorf("%v after %s", err, took)
	}
	owner.Close()
	owning(t, dir) // nobody else does
}

// A process that speaks another protocol is refused, and one that says nothing keeps nobody from waiting.
func TestOtherProtocol(t *testing.T) {
	dir := dir(t)
	owner := owning(t, dir)
	for said, want := range map[string]string{
		`{"protocol":2}`: "this process uses protocol 2, not 1", `{`: "unexpected end of JSON input", "": "i/o timeout",
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

// A process that has come, but has not said hello before the owner ends, sees that end: the owner's process may run on,
// and nobody would ever tell it anything.
func TestWelcome_AfterClose(t *testing.T) {
	dir := dir(t)
	owner := owning(t, dir)
	late, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: owner.socket, Net: "unix"})
	must.Succeed(t, err)
	defer late.Close()    //nolint:errcheck // the test is over
	waitingBehind(t, dir) // it has come later, and is welcome: so the first one is accepted
	owner.Close()
	must.Succeed(t, send(late, message{Protocol: protocol}))
	must.Succeed(t, late.SetReadDeadline(time.Now().Add(await.Timeout)))
	if said, _, err := receive(late); !errors.Is(err, io.EOF) {
		t.Errorf("%+v, error %v; want the end", said, err)
	}
}

// An owner that hangs from the beginning is not waited for.
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

// FuzzReceive: whatever a process says, the other end reads one word of bounded size, or an error.
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
