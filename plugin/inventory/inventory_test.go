// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"github.com/rdma-spec/rdma-spec/spec/hca"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/testing/expect"
	"github.com/rdma-spec/rdma-spec/test/testing/must"
)

// fake is a node whose HCAs answer when they like.
type fake struct {
	mu    sync.Mutex
	names []string
	place string // of all HCAs
	err   error
	sick  map[string]chan struct{} // closed when the HCA answers
	reads map[string]int
	state string
}

func (f *fake) set(change func(*fake)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(f)
}

func (f *fake) list() (node *hca.Inventory, changed bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return nil, false, f.err
	}
	node = &hca.Inventory{}
	for i, name := range f.names {
		node.HCAs = append(node.HCAs, hca.HCA{Name: name, Place: f.place,
			Devices: []hca.Device{{Kind: hca.KindVerbs, Number: hca.Number{Major: 231, Minor: uint32(192 + i)}, HCA: name}}})
	}
	return node, true, nil
}

func (f *fake) read(listed hca.HCA, _ hca.Parts) hca.HCA {
	f.mu.Lock()
	name := listed.Name
	f.reads[name]++
	sick, state, place := f.sick[name], f.state, f.place
	f.mu.Unlock()
	if sick != nil {
		<-sick
	}
	h := hca.HCA{Name: name, Place: place, NodeType: "CA",
		Ports: []hca.Port{{Number: 1, State: state, LinkLayer: "InfiniBand"}}}
	if state == "" {
		h.Problems = []string{"ports/1/state: input/output error"}
	}
	return h
}

func (f *fake) count(name string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.reads[name]
}

// newFakeInventory makes an inventory of a fake node, whose log is kept.
func newFakeInventory(t *testing.T, names ...string) (*Inventory, *fake, *logtest.Hook) {
	t.Helper()
	f := &fake{names: names, sick: map[string]chan struct{}{}, reads: map[string]int{}, state: "ACTIVE"}
	log, hook := logtest.NewNullLogger()
	i := New(hcatest.NoRDMA(t), log)
	i.list, i.read = f.list, f.read
	i.Want(wantAll, hca.Parts{})
	return i, f, hook
}

// wantAll wants all HCAs.
func wantAll(*hca.HCA) bool { return true }

// follow runs an inventory until the test ends, and gives what tells it that devices have changed.
func follow(t *testing.T, i *Inventory, f *fake) (changed chan<- struct{}) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	devices := make(chan struct{}, 1)
	t.Cleanup(synctest.Wait)
	t.Cleanup(func() {
		stop()
		for _, sick := range f.sick {
			select {
			case <-sick:
			default:
				close(sick)
			}
		}
	})
	go i.follow(ctx, devices, func() {})
	return devices
}

func lines(hook *logtest.Hook) []string {
	var all []string
	for _, e := range hook.AllEntries() {
		what, _, _ := strings.Cut(e.Message, ", so ")
		all = append(all, fmt.Sprintf("%s %v %s", e.Level, e.Data["hca"], what))
	}
	return all
}

func states(t *testing.T, i *Inventory) map[string]string {
	t.Helper()
	node, _, err := i.HCAs(t.Context())
	must.Succeed(t, err)
	all := map[string]string{}
	for _, h := range node.HCAs {
		if all[h.Name] = "unread"; h.Unread == "" {
			all[h.Name] = h.Ports[0].State
		}
	}
	return all
}

// expectErrorEnds expects that an HCA that has answered with an error for a while counts as not read meanwhile, that its
// next answer counts, and that the log has both once.
func expectErrorEnds(t *testing.T, i *Inventory, f *fake, hook *logtest.Hook, state string) {
	t.Helper()
	if age := time.Since(i.known["mlx5_0"].responded); age < 2*interval {
		t.Errorf("its answer is said to be %s old", age)
	}
	f.set(func(f *fake) { f.state = state })
	time.Sleep(2 * interval)
	if got := states(t, i)["mlx5_0"]; got != state {
		t.Errorf("then it is %q", got)
	}
	want := []string{"warning mlx5_0 the HCA responds with an error", "info mlx5_0 the HCA responds again"}
	expect.Equal(t, "log", want, lines(hook))
}

// TestInventory_errorAtFirst: an HCA that has answered for a port with errors alone is unknown, and not one whose port is down.
func TestInventory_errorAtFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i, f, hook := newFakeInventory(t, "mlx5_0")
		f.state = ""
		follow(t, i, f)
		time.Sleep(3 * interval)
		node, _, err := i.HCAs(t.Context())
		if err != nil || !strings.Contains(node.HCAs[0].Unread, "ports/1/state: input/output error") {
			t.Errorf("%+v, error %v", node, err)
		}
		expectErrorEnds(t, i, f, hook, "ACTIVE")
	})
}

// TestInventory_errorKeepsState: a port whose state cannot be read for a while is not a port that is down.
func TestInventory_errorKeepsState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i, f, hook := newFakeInventory(t, "mlx5_0")
		follow(t, i, f)
		synctest.Wait()
		f.set(func(f *fake) { f.state = "" })
		time.Sleep(3 * interval)
		if got := states(t, i)["mlx5_0"]; got != "ACTIVE" {
			t.Errorf("while it answers with an error, its state is %q", got)
		}
		expectErrorEnds(t, i, f, hook, "DOWN")
	})
}

// TestInventory_sickHCA: an HCA that does not answer holds up no other, is asked once, and is named once.
func TestInventory_sickHCA(t *testing.T) {
	for name, test := range map[string]struct {
		sickFrom time.Duration // after how long it no longer answers
		asked    int
		want     string // its state while it does not answer
		warning  string
	}{
		"from the start": {0, 1, "unread", "warning mlx5_1 the HCA has never responded"},
		"later":          {15 * time.Second, 3, "ACTIVE", "warning mlx5_1 the HCA does not respond"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				i, f, hook := newFakeInventory(t, "mlx5_0", "mlx5_1", "mlx5_2")
				sick := make(chan struct{})
				if test.sickFrom == 0 {
					f.sick["mlx5_1"] = sick
				}
				follow(t, i, f)
				time.Sleep(test.sickFrom)
				f.set(func(f *fake) { f.sick["mlx5_1"] = sick })
				time.Sleep(10 * time.Second)
				f.set(func(f *fake) { f.state = "DOWN" })
				time.Sleep(time.Minute + time.Second)
				expect.Equal(t, "states", map[string]string{"mlx5_0": "DOWN", "mlx5_1": test.want, "mlx5_2": "DOWN"},
					states(t, i))
				if got := f.count("mlx5_1"); got != test.asked {
					t.Errorf("asked %d times, want %d", got, test.asked)
				}
				if got, least := f.count("mlx5_0"), 7; got < least {
					t.Errorf("the other was asked %d times, want %d", got, least)
				}
				expect.Equal(t, "log", []string{test.warning}, lines(hook))
				silent := time.Since(i.known["mlx5_1"].responded)
				want := fmt.Sprintf("# HELP nri_rdma_hca_reads_outstanding Reads that are waiting for a response; "+
					"at most one for each HCA.\n"+
					"# TYPE nri_rdma_hca_reads_outstanding gauge\nnri_rdma_hca_reads_outstanding 1\n"+
					"# HELP nri_rdma_hca_age_seconds Time since the HCA last responded or, if it never responded, "+
					"since the first read.\n"+
					"# TYPE nri_rdma_hca_age_seconds gauge\nnri_rdma_hca_age_seconds{hca=\"mlx5_0\"} "+
					"%v\nnri_rdma_hca_age_seconds{hca=\"mlx5_1\"} %v\nnri_rdma_hca_age_seconds{hca=\"mlx5_2\"} %v\n",
					time.Since(i.known["mlx5_0"].responded).Seconds(), silent.Seconds(), time.Since(i.known["mlx5_2"].responded).Seconds())
				if err := testutil.CollectAndCompare(i, strings.NewReader(want), "nri_rdma_hca_reads_outstanding",
					"nri_rdma_hca_age_seconds"); err != nil {
					t.Error(err)
				}
				if silent < time.Minute {
					t.Errorf("what is known is said to be %s old", silent)
				}

				close(sick)
				synctest.Wait()
				if got := states(t, i)["mlx5_1"]; got == "unread" {
					t.Error("it answered, and is still unread")
				}
				time.Sleep(interval + readTimeout)
				if got := states(t, i)["mlx5_1"]; got != "DOWN" {
					t.Errorf("it answers again, and is %s", got)
				}
				expect.Equal(t, "log", []string{test.warning, "info mlx5_1 the HCA responds again"}, lines(hook))
			})
		})
	}
}

// TestInventory_manySickHCAs: however many do not answer, the others are read, in a time that is bounded.
func TestInventory_manySickHCAs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var names []string
		for n := range 41 {
			names = append(names, fmt.Sprintf("mlx5_%d", n))
		}
		i, f, _ := newFakeInventory(t, names...)
		for _, name := range names[:40] {
			f.sick[name] = make(chan struct{})
		}
		began := time.Now()
		follow(t, i, f)
		if _, _, err := i.HCAs(t.Context()); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took != 40/parallelReads*readTimeout {
			t.Errorf("took %s", took)
		}
		time.Sleep(interval)
		f.set(func(f *fake) { f.state = "DOWN" })
		time.Sleep(interval + readTimeout)
		if got := states(t, i)["mlx5_40"]; got != "DOWN" {
			t.Errorf("the sound one is %s", got)
		}
	})
}

// TestInventory_returningHCA: an HCA that comes back before it has answered is not asked a second time.
func TestInventory_returningHCA(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i, f, _ := newFakeInventory(t, "mlx5_0")
		changed := follow(t, i, f)
		synctest.Wait()
		f.set(func(f *fake) { f.sick["mlx5_0"] = make(chan struct{}) })
		for _, names := range [][]string{{"mlx5_0"}, {}, {"mlx5_0"}} {
			f.set(func(f *fake) { f.names = names })
			changed <- struct{}{}
			time.Sleep(time.Second)
			if got := len(states(t, i)); got != len(names) {
				t.Errorf("%d HCAs, want %d", got, len(names))
			}
		}
		if got := f.count("mlx5_0"); got != 2 {
			t.Errorf("asked %d times, want 2", got)
		}
	})
}

// TestInventory_reusedName: an HCA that gets the name of one that is gone is unknown until it answers itself, whatever the
// other one has answered, or answers late.
func TestInventory_reusedName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i, f, _ := newFakeInventory(t, "mlx5_0")
		changed := follow(t, i, f)
		synctest.Wait()
		expect := func(when string, unread bool) {
			t.Helper()
			node, _, err := i.HCAs(t.Context())
			if err != nil || (node.HCAs[0].Unread != "") != unread {
				t.Errorf("%s: %+v, error %v", when, node.HCAs, err)
			}
		}
		expect("at first", false)
		first, second := make(chan struct{}), make(chan struct{})
		f.set(func(f *fake) { f.sick["mlx5_0"] = first })
		changed <- struct{}{}
		time.Sleep(time.Second)
		f.set(func(f *fake) { f.place, f.sick["mlx5_0"] = "another", second })
		changed <- struct{}{}
		time.Sleep(time.Second)
		expect("another one has the name", true)
		close(first)
		synctest.Wait()
		expect("the first one answers late", true)
		close(second)
		synctest.Wait()
		expect("it answers itself", false)
	})
}

// TestHCAs_waitsForFirstRead: who asks before the node was read waits, but not longer than its context.
func TestHCAs_waitsForFirstRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, _ := logtest.NewNullLogger()
		i := New(hcatest.NoRDMA(t), log)
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		if node, _, err := i.HCAs(ctx); err == nil || !strings.Contains(err.Error(), "have not been read yet") ||
			time.Since(began) != 300*time.Millisecond {
			t.Errorf("%v, error %v after %s", node, err, time.Since(began))
		}
		time.AfterFunc(200*time.Millisecond, i.readAll)
		if node, _, err := i.HCAs(t.Context()); err != nil || node == nil || time.Since(began) != 500*time.Millisecond {
			t.Errorf("%v, error %v after %s", node, err, time.Since(began))
		}
	})
}

// TestNotListed: without a list of the HCAs there is an error at first, and later what was known.
func TestNotListed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i, f, hook := newFakeInventory(t)
		f.err = errors.New("input/output error")
		changed := follow(t, i, f)
		time.Sleep(3 * interval)
		if _, _, err := i.HCAs(t.Context()); err == nil || err.Error() != "input/output error" {
			t.Errorf("error %v", err)
		}
		f.set(func(f *fake) { f.err, f.names = nil, []string{"mlx5_0"} })
		changed <- struct{}{}
		time.Sleep(time.Second)
		f.set(func(f *fake) { f.err = errors.New("no such device") })
		changed <- struct{}{}
		time.Sleep(time.Second)
		if got := states(t, i); len(got) != 1 {
			t.Errorf("HCAs %v", got)
		}
		if got := lines(hook); len(got) != 2 {
			t.Errorf("log %q", got)
		}
	})
}

// TestVerbs: a number is looked up live, and the HCA's name comes from what is known.
func TestVerbs(t *testing.T) {
	log, _ := logtest.NewNullLogger()
	i := New(hcatest.V100(t), log)
	number := hca.Number{Major: hcatest.Major, Minor: hcatest.FirstVerbs + 1}
	for _, want := range []string{"", "mlx5_1"} {
		if d, ok, err := i.Verbs(number); !ok || err != nil || d.HCA != want || d.Path != "/dev/infiniband/uverbs1" {
			t.Errorf("%+v, %v, error %v, want HCA %q", d, ok, err, want)
		}
		i.readAll()
	}
	if d, ok, err := i.Verbs(hca.Number{Major: hcatest.Major, Minor: 7}); ok || err != nil || i.NumbersUnknown() != nil {
		t.Errorf("%+v, %v, error %v, unknown: %v", d, ok, err, i.NumbersUnknown())
	}
}

// TestNumbersUnknown_withoutSysDev: without /sys/dev no number is said to be none, the log says so once, and it is tried again.
func TestNumbersUnknown_withoutSysDev(t *testing.T) {
	log, hook := logtest.NewNullLogger()
	files := hcatest.V100Node().Files()
	root := hcatest.V100Node().Files().Without("sys/dev").Root(t)
	i := New(root, log)
	i.readAll()
	number := hca.Number{Major: hcatest.Major, Minor: hcatest.FirstVerbs}
	if _, ok, err := i.Verbs(number); ok || err == nil || i.NumbersUnknown() == nil || !strings.Contains(err.Error(),
		"mount the node's /sys/dev") {
		t.Errorf("%v, error %v", ok, err)
	}
	mounted := hcatest.Files{}
	for _, p := range files.Under("sys/dev") {
		mounted[p] = files[p]
	}
	must.Succeed(t, mounted.Write(root))
	i.readAll()
	if d, ok, err := i.Verbs(number); !ok || err != nil || i.NumbersUnknown() != nil || d.HCA != "mlx5_0" {
		t.Errorf("%+v, %v, error %v", d, ok, err)
	}
	var levels []logrus.Level
	for _, e := range hook.AllEntries() {
		levels = append(levels, e.Level)
	}
	expect.Equal(t, "log", []logrus.Level{logrus.ErrorLevel, logrus.InfoLevel}, levels)
}
