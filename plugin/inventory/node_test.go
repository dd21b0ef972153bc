// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	logtest "github.com/sirupsen/logrus/hooks/test"

	"github.com/rdma-spec/rdma-spec/spec/hca"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/testing/await"
	"github.com/rdma-spec/rdma-spec/test/testing/expect"
	"github.com/rdma-spec/rdma-spec/test/testing/must"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// run runs an inventory of the files below root.
func run(t *testing.T, root string) (*Inventory, *logtest.Hook) {
	t.Helper()
	log, hook := logtest.NewNullLogger()
	i := New(root, log)
	i.Want(wantAll, hca.Parts{})
	await.Beside(t, i.Run)
	return i, hook
}

func reads(i *Inventory) int {
	i.mu.Lock()
	defer i.mu.Unlock()
	n := 0
	for _, k := range i.known {
		if k.outstanding {
			n++
		}
	}
	return n
}

// TestKnown: an HCA has its name and its address as soon as it is listed, wanted or not, and nobody waits for it.
func TestKnown(t *testing.T) {
	root := hcatest.V100(t)
	hcatest.Block(t, root, hcatest.Dir("mlx5_0", "0000:5e:00.0")+"/ports/1/state")
	log, _ := logtest.NewNullLogger()
	i := New(root, log)
	if i.Known() != nil {
		t.Errorf("before it is listed: %+v", i.Known())
	}
	await.Beside(t, i.Run)
	await.That(t, await.Timeout, "known", func() bool { return i.Known() != nil })
	for id, want := range map[string]bool{"mlx5_0": true, "0000:5e:00.0": true, "0000:86:00.0": true, "": false,
		"0000:5e:00.1": false, "0": false} {
		if i.Known().Identifies(id) != want {
			t.Errorf("%q identifies an HCA: not %t", id, want)
		}
	}
}

// TestLatest: nobody waits for it, and it has what HCAs has.
func TestLatest(t *testing.T) {
	root := hcatest.V100(t)
	log, _ := logtest.NewNullLogger()
	i := New(root, log)
	if node, _, err := i.Latest(); !errors.Is(err, errNotRead) {
		t.Errorf("before the node is read: %+v, %v", node, err)
	}
	i.Want(wantAll, hca.Parts{})
	await.Beside(t, i.Run)
	want, _, err := i.HCAs(t.Context())
	must.Succeed(t, err)
	got, _, err := i.Latest()
	must.Succeed(t, err)
	expect.Equal(t, "the node", want, got)
}

// TestInventory_blockedPort: a port whose state blocks its reader holds up no other HCA, and is known as soon as it answers.
func TestInventory_blockedPort(t *testing.T) {
	root := hcatest.V100(t)
	unblock := hcatest.Block(t, root, hcatest.Dir("mlx5_0", "0000:5e:00.0")+"/ports/1/state")
	i, hook := run(t, root)
	node, _, err := i.HCAs(t.Context())
	must.Succeed(t, err)
	if sick, sound := node.HCAs[0], node.HCAs[1]; sick.Unread == "" || len(sound.Devices) != 1 ||
		!sound.Active() || reads(i) != 1 {
		t.Errorf("%+v, %+v, %d reads outstanding", sick, sound, reads(i))
	}
	await.That(t, await.Timeout, "the log names mlx5_0",
		func() bool { return len(hook.AllEntries()) == 1 && hook.LastEntry().Data["hca"] == "mlx5_0" })
	unblock()
	await.That(t, await.Timeout, "mlx5_0 is known", func() bool {
		node, _, err := i.HCAs(t.Context())
		return err == nil && node.HCAs[0].Unread == "" && node.HCAs[0].Active() && reads(i) == 0
	})
}

// TestInventory_devicesChange: a device that comes or goes has the node read at once.
func TestInventory_devicesChange(t *testing.T) {
	files := hcatest.V100Node().Files()
	root := files.With(hcatest.Files{"dev/infiniband/": ""}).Root(t)
	i, _ := run(t, root)
	if _, _, err := i.HCAs(t.Context()); err != nil {
		t.Fatal(err)
	}
	must.Succeed(t, os.Remove(filepath.Join(root, "sys/class/infiniband/mlx5_1")))
	scratch.File(t, filepath.Join(root, "dev/infiniband/uverbs9"), "", 0o600)
	await.That(t, interval/2, "mlx5_1 is gone", func() bool {
		node, _, err := i.HCAs(t.Context())
		return err == nil && len(node.HCAs) == 1
	})
}

// TestHCAs_stale: from the moment that a device comes or goes until the node is read again, what is known says that it may
// be wrong.
func TestHCAs_stale(t *testing.T) {
	root := hcatest.V100Node().Files().With(hcatest.Files{"dev/infiniband/": ""}).Root(t)
	dir := filepath.Join(root, "dev/infiniband")
	long := time.Now().Add(-time.Hour) // file systems tell times of a few milliseconds apart
	must.Succeed(t, os.Chtimes(dir, long, long))
	log, _ := logtest.NewNullLogger()
	i := New(root, log)
	stale := func() bool {
		t.Helper()
		_, stale, err := i.HCAs(t.Context())
		must.Succeed(t, err)
		return stale
	}
	i.readAll()
	if stale() {
		t.Error("what was just read is stale")
	}
	scratch.File(t, filepath.Join(dir, "uverbs9"), "", 0o600)
	if !stale() {
		t.Error("a device has come, and what is known is not stale")
	}
	i.readAll()
	if stale() {
		t.Error("what was read again is stale")
	}
}

// TestInventory_thousandHCAs: an HCA among a thousand takes no longer to read than one among fifty, and what a request asks takes
// no longer either.
func TestInventory_thousandHCAs(t *testing.T) {
	few, many := hcatest.Many(50).Files().Root(t), hcatest.Many(1000).Files().Root(t)
	t.Run("read", func(t *testing.T) { readThousandHCAs(t, few, many) })
	t.Run("asked", func(t *testing.T) { askThousandHCAs(t, few, many) })
}

// readThousandHCAs measures CPU time: the machine has others to serve.
func readThousandHCAs(t *testing.T, few, many string) {
	t.Helper()
	log, _ := logtest.NewNullLogger()
	used := func() time.Duration {
		var u syscall.Rusage
		must.Succeed(t, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	took := func(root string, hcas int) time.Duration {
		i := New(root, log)
		began := used()
		i.readAll()
		spent := used() - began
		if node, _, err := i.HCAs(t.Context()); err != nil || len(node.HCAs) != hcas {
			t.Fatalf("%d HCAs: error %v", hcas, err)
		}
		return spent
	}
	const most = 30 // 20 is as long for each of them; a step that is quadratic makes it hundreds
	ratio := 0.0
	for range 3 {
		var short time.Duration
		for range 20 {
			short += took(few, 50)
		}
		long := took(many, 1000)
		if ratio = float64(long) / float64(short/20); ratio <= most {
			t.Logf("50 HCAs take %s, 1,000 take %s: %.1f times", short/20, long, ratio)
			return
		}
	}
	t.Errorf("1,000 HCAs take %.1f times as long as 50, want %d at most", ratio, most)
}

func askThousandHCAs(t *testing.T, few, many string) {
	t.Helper()
	log, _ := logtest.NewNullLogger()
	read := func(root string) *Inventory {
		i := New(root, log)
		i.readAll()
		return i
	}
	number := hca.Number{Major: hcatest.Major, Minor: hcatest.FirstVerbs + 31}
	took := func(i *Inventory) time.Duration {
		best := time.Hour
		for range 20 {
			began := time.Now()
			for range 100 {
				if d, ok, err := i.Verbs(number); !ok || err != nil || d.HCA != "mlx5_31" {
					t.Fatalf("%+v, %v, error %v", d, ok, err)
				}
				if _, _, err := i.HCAs(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			best = min(best, time.Since(began))
		}
		return best
	}
	besideFew, besideMany := took(read(few)), took(read(many))
	t.Logf("50 HCAs: %s, 1,000: %s", besideFew/100, besideMany/100)
	if besideMany > 2*besideFew {
		t.Errorf("100 times %s beside 50 HCAs, %s beside 1,000", besideFew, besideMany)
	}
}
