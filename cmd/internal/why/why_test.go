// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package why

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/google/go-cmp/cmp"
)

// TestLines reads lines by themselves: the operation, the status, and the page of the first cause.
func TestLines(t *testing.T) {
	for _, c := range []struct{ line, operation, status, page string }{
		{"mlx5_core 0000:d2:00.0: mlx5_cmd_out_err:838:(pid 1441871): ACCESS_REG(0x805) op_mod(0x1) failed, status bad operation(0x2), syndrome (0x9a6171), err(-22)", "", "", ""},
		{"NET/OFI No eligible providers were found", "fi_getinfo", "", "container-hostpath"},
		{"NCCL WARN Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_3:1, curr state INIT, next state RTR", "ibv_modify_qp to RTR", "ETIMEDOUT", "container-routes"},
		{"mlx5dv_devx_create_event_channel() failed: Protocol not supported", "mlx5dv_devx_create_event_channel", "EPROTONOSUPPORT", "container-provider"},
		{"ibgda.cpp: NULL value cannot allocate mlx5dv_devx_uar", "mlx5dv_devx_alloc_uar", "", ""},
		{"mlx5_cmd_check:810:(pid 923941): create_mkey(0x200) op_mod(0x0) failed, status bad parameter(0x3), syndrome (0x35e6ec)", "firmware CREATE_MKEY", "bad parameter", ""},
		{"RDMA resources for 0000:01:00.1 not found. Are RDMA modules loaded?", "device plugin", "not found", "hca-driver"},
		{"mlx5dv_devx_umem_reg failed", "mlx5dv_devx_umem_reg", "", "gpu-direct"},
		// Twelve is two things: retries of a completion, and ENOMEM.
		{"what(): a work item failed: status 12 (Ib failure: Cannot allocate memory)", "completion", "IBV_WC_RETRY_EXC_ERR", "container-gid-index"},
		{"ibv_reg_mr failed [error code: 12]", "ibv_reg_mr", "ENOMEM", "container-memlock"},
		// Numbers that are nobody's errno.
		{"ibgda.cpp:2966: non-zero status: 7 ibv_create_ah failed", "ibv_create_ah", "", "container-gid-index"},
		{"Failed to open all IBDevices, error InvalidArg(3)", "ibv_open_device", "", ""},
		{"NCCL WARN NET/IB: Got completion from peer 10.0.0.3<40554> with status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_RECV_RDMA_WITH_IMM(129) vendor_err=129 hca mlx5_1", "completion", "IBV_WC_RETRY_EXC_ERR", "container-gid-index"},
		{"NCCL WARN NET/IB : Got completion from peer 10.0.0.3<4> with status=5 opcode=32656 len=32659 vendor err 249 (Recv)", "", "", ""},
		{"NCCL WARN NET/IB : Got async event : port error", "asynchronous event", "port error", "port-active"},
		{"UCX WARN IB Async event on mlx5_0: GID table change on port 1", "", "", ""},
		{"UCX ERROR ibv_modify_qp(DCI, RTR) failed : Invalid argument", "ibv_modify_qp to RTR", "EINVAL", "container-gid-index"},
		{"Transport retry count exceeded on mlx5_0:1/IB (synd 0x15 vend 0x81 hw_synd 0/0)", "completion", "IBV_WC_RETRY_EXC_ERR", "port-active"},
		{"Local protection on mlx5_0:1/IB (synd 0x4 vend 0x51 hw_synd 0/2)", "completion", "IBV_WC_LOC_PROT_ERR", "acs"},
		{"mlx5_core 0000:61:00.0: mlx5_cmd_check:795:(pid 53945): ALLOC_UAR(0x802) op_mod(0x0) failed, status limits exceeded(0x8), syndrome (0x5a7939)", "firmware ALLOC_UAR", "limits exceeded", ""},
		{"udaddy: event: RDMA_CM_EVENT_UNREACHABLE, error: 2", "rdma_connect", "unreachable", "container-routes"},
		{"rdma_create_qp failed: errno 12: Cannot allocate memory", "ibv_create_qp", "ENOMEM", "container-memlock"},
		{"Failed to modify QP to INIT, check local context port num: Invalid argument [22]", "ibv_modify_qp to INIT", "EINVAL", ""},
		{"\x1b[31mibv_reg_mr failed\x1b[0m: Bad address", "ibv_reg_mr", "EFAULT", "gpu-direct"},
		{"Couldn\u2019t allocate MR", "ibv_reg_mr", "", "container-memlock"},
		{"failed to create mr", "ibv_reg_mr", "", "container-memlock"},
		{"Failed to create MR", "ibv_reg_mr", "", "container-memlock"},
		{"ethernet_read_keys: Couldn't read remote address", "", "", ""},
		{"NCCL WARN socketProgress: Connection closed by remote peer", "", "", ""},
		{"NCCL WARN ncclProxyServiceUDS failed to accept", "", "", ""},
		{"Failed to initialize NVML: Unknown Error", "NVML", "Unknown Error", "container-devices"},
		{"error adding container to network \"rdma-net-ib1\": failed to create macvlan: invalid argument", "CNI plugin", "EINVAL", "container-netdev"},
		{"Storage modules are loaded for current driver, terminating prior driver reload failure due to UNLOAD_STORAGE_MODULES not set to \"true\"", "driver container", "EBUSY", "modules-of-one-build"},
	} {
		r, err := Read(strings.NewReader(c.line))
		if err != nil {
			t.Fatal(err)
		}
		got := c
		got.operation, got.status, got.page = "", "", ""
		if r.Matters() {
			root := r.Roots[0]
			got.operation, got.status = root.Operation, root.Status
			if len(root.Causes) > 0 {
				got.page = root.Causes[0].Page
			}
		}
		if got != c {
			t.Errorf("%s\n got %q %q %q\nwant %q %q %q", c.line, got.operation, got.status, got.page, c.operation, c.status, c.page)
		}
	}
}

// TestReport_flushed checks that a log with nothing but flushed completions says where to look: at the completion that
// failed first.
func TestReport_flushed(t *testing.T) {
	for _, line := range []string{
		"NCCL WARN NET/IB : Got completion from peer 10.0.0.3<4> with status=5 opcode=32656 len=32659 vendor err 249 (Recv)",
		"mlx5_0: CQE with IBV_WC_WR_FLUSH_ERR",
	} {
		r, err := Read(strings.NewReader(line))
		if err != nil || r.Matters() || len(r.Remarks) != 1 || !strings.Contains(r.Remarks[0].Reason, "flushed") {
			t.Errorf("%s: %+v, %v", line, r, err)
		}
	}
}

// TestReport_Matters checks what the lines after an error make of it: results of the program make it harmless, what
// somebody pasted behind it does not.
func TestReport_Matters(t *testing.T) {
	const strong, slight = "UCX ERROR ibv_create_cq(cqe=4096) failed: Cannot allocate memory\n", "NCCL INFO NET/IB : No device found.\n"
	for _, c := range []struct {
		log     string
		matters bool
	}{
		{strong, true},
		{strong + "# Size       Avg Latency(us)\n1                       0.23\n", false},
		{strong + "1                       0.23\nterminate called after throwing an instance of 'x'\n", true},
		{"1                       0.23\n" + strong, true},
		{strong + "00000000 00000000 00000000 00000000\n", true},
		{strong + "hca_id: mlx5_0\n  state: PORT_ACTIVE (4)\n", true},
		{slight, true},
		{slight + "hca_id: mlx5_0\n  state: PORT_ACTIVE (4)\n", false},
		{slight + "torch.cuda.OutOfMemoryError: CUDA out of memory.\n", false},
		{"torch.cuda.OutOfMemoryError: CUDA out of memory.\n" + strong, true},
	} {
		r, err := Read(strings.NewReader(c.log))
		if err != nil || r.Matters() != c.matters {
			t.Errorf("%q: %+v, %v", c.log, r, err)
		}
	}
}

// TestMessages_allAreFound checks that what the tables name is there and can be found: each wording is read as its own style says,
// each example as the row that has it.
func TestMessages_allAreFound(t *testing.T) {
	used := map[string]bool{}
	for i, s := range messages() {
		for _, name := range s.causes {
			used[name] = true
		}
		if s.kind == fact || s.kind == healthy || s.kind == goesOn || s.kind == ends {
			continue
		}
		line := strings.ReplaceAll(s.text, "...", "x")
		low := strings.ToLower(line)
		var hits []int
		allWords().find([]byte(low), func(id int) {
			if id >= 0 {
				hits = append(hits, id)
			}
		})
		if !slices.Contains(hits, i) {
			t.Errorf("%q is not found", s.text)
		}
		if r, ok := known(low, hits); !ok || r.program != s.program || r.kind != s.kind {
			t.Errorf("%q is read as %+v", s.text, r)
		}
	}
	for _, w := range pairs() {
		for _, name := range w.causes {
			used[name] = true
		}
		for _, example := range w.examples {
			r, err := Read(strings.NewReader(example))
			if err != nil || !r.Matters() {
				t.Errorf("%q says nothing", example)
				continue
			}
			var want []Cause
			for _, name := range w.causes {
				want = append(want, causes()[name])
			}
			if diff := cmp.Diff(want, r.Roots[0].Causes); diff != "" {
				t.Errorf("%q, which is %s %s (-want +got):\n%s", example, r.Roots[0].Operation, r.Roots[0].Status, diff)
			}
		}
	}
	for name, c := range causes() {
		if !used[name] && c.Who != "" {
			t.Errorf("the cause %s is of no message", name)
		}
	}
	for name := range used {
		if causes()[name].Text == "" {
			t.Errorf("there is no cause %s", name)
		}
	}
}

// TestReadIsBounded reads a long log, of which little is kept, however it is made.
func TestReadIsBounded(t *testing.T) {
	const lines = 4_000
	for name, line := range map[string]func(i int) string{
		"info": func(i int) string {
			return fmt.Sprintf("node-1:%d:%d [0] NCCL INFO Channel %d/0 : 1[1] -> 0[0] via P2P/IPC\n", i, i+1, i%32)
		},
		"storm": func(i int) string {
			return fmt.Sprintf("NCCL WARN NET/IB : Got completion from peer 10.0.0.%d<4> with error 12, opcode 0, len 0, vendor err 129\n", i%256)
		},
		"many kinds": func(i int) string {
			return fmt.Sprintf("ibv_thing%s failed: Bad address\n", strings.Repeat("x", i%500))
		},
		"no line": func(int) string { return "ibv_reg_mr failed " },
	} {
		t.Run(name, func(t *testing.T) {
			i := 0
			source := readerFunc(func(p []byte) (int, error) {
				if i == lines {
					return 0, io.EOF
				}
				i++
				return copy(p, line(i)), nil
			})
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			r, err := Read(source)
			if err != nil {
				t.Fatal(err)
			}
			runtime.GC()
			runtime.ReadMemStats(&after)
			if kept := int64(after.HeapAlloc) - int64(before.HeapAlloc); kept > 1<<20 {
				t.Errorf("%d bytes are kept", kept)
			}
			if len(r.Roots) > mostRoots || len(r.Remarks) > mostRemarks {
				t.Errorf("%d roots and %d remarks", len(r.Roots), len(r.Remarks))
			}
		})
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// TestReadFails checks that a log that ends with an error is no log without errors.
func TestReadFails(t *testing.T) {
	broken := io.MultiReader(strings.NewReader("fine\n"), readerFunc(func([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }))
	if r, err := Read(broken); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestPrefer checks that a cause whose check is wrong on the node comes first.
func TestPrefer(t *testing.T) {
	r, err := Read(strings.NewReader("ibv_modify_qp failed with error Connection timed out"))
	if err != nil {
		t.Fatal(err)
	}
	r.Prefer(func(check string) bool { return check == "port-active" })
	first := r.Roots[0].Causes[0]
	if first.Page != "port-active" || !first.Wrong {
		t.Errorf("%+v", r.Roots[0].Causes)
	}
	for _, c := range r.Roots[0].Causes[1:] {
		if c.Wrong {
			t.Errorf("%+v is wrong as well", c)
		}
	}
}

// FuzzRead reads any bytes: nothing of them that steers a terminal is kept, and little at all.
func FuzzRead(f *testing.F) {
	for name := range answersOf(f) {
		text, err := os.ReadFile("testdata/logs/" + name + ".log")
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
		f.Add(text[:len(text)/2])
	}
	f.Add([]byte("\x1b[31mibv_reg_mr failed: Bad address\x1b[0m\x07\x00\xff\n"))
	f.Add([]byte("ibv_reg_mr failed \u202e\u0085: Bad address"))
	f.Add(bytes.Repeat([]byte("ibv_reg_mr failed: "), 4000))
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := Read(bytes.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		var kept []Line
		for _, root := range r.Roots {
			kept = append(kept, root.Line)
			if root.StatusLine != nil {
				kept = append(kept, *root.StatusLine)
			}
		}
		for _, remark := range r.Remarks {
			kept = append(kept, remark.Line)
		}
		for _, line := range kept {
			for _, text := range []string{line.Text, line.Rank, line.Program, line.Operation, line.Status, line.Detail, line.Device} {
				bad := strings.IndexFunc(text, func(r rune) bool { return !unicode.IsPrint(r) && r != unicode.ReplacementChar })
				if bad >= 0 || len(text) > 3*longestText+10 {
					t.Errorf("kept: %q", text)
				}
			}
		}
	})
}

// BenchmarkRead reads a log of NCCL, as jobs with NCCL_DEBUG=INFO write it, with an error storm in it.
func BenchmarkRead(b *testing.B) {
	var text bytes.Buffer
	for i := range 20_000 {
		fmt.Fprintf(&text, "node-%d:%d:%d [%d] NCCL INFO Channel %02d/0 : %d[%d] -> %d[%d] [send] via NET/IB/%d/GDRDMA\n", i%16, i, i+1, i%8, i%32, i%128, i%8, i%127, i%8, i%4)
		switch {
		case i%500 == 0:
			fmt.Fprintf(&text, "node-%d:%d:%d [%d] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer 10.0.%d.%d<%d> with error 12, opcode %d, len 0, vendor err 129\n",
				i%16, i, i+1, i%8, i%250, i%251, i, i%64)
		case i%100 == 0:
			fmt.Fprintf(&text, "node-%d:%d:%d [%d] NCCL INFO NCCL_IB_GID_INDEX set by environment to 3.\n", i%16, i, i+1, i%8)
		case i%97 == 0:
			fmt.Fprintf(&text, "[rank%d]:   File \"/opt/train/loop.py\", line %d, in step: loss failed to converge, error %f\n", i%128, i%900, 1/float64(i))
		}
	}
	b.SetBytes(int64(text.Len()))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Read(bytes.NewReader(text.Bytes())); err != nil {
			b.Fatal(err)
		}
	}
}

// TestReportEncodes checks that an empty report is one for programs as well.
func TestReportEncodes(t *testing.T) {
	r, err := Read(strings.NewReader(""))
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(r)
	if want := `{"lines":0,"roots":[],"remarks":[]}`; err != nil || string(text) != want {
		t.Errorf("%s, %v; want %s", text, err, want)
	}
}

// TestPattern_EachCompiles: in a program, a pattern is compiled when a log is read.
func TestPattern_EachCompiles(t *testing.T) {
	if len(patterns) < 30 {
		t.Errorf("%d patterns, want all of the package", len(patterns))
	}
	for _, p := range patterns {
		p.Match(nil) // panics where it is not valid
	}
}

// TestPage_Addresses: on the site, a message has an address in which any space is a dash, and no two have the same.
func TestPage_Addresses(t *testing.T) {
	of := map[string]string{}
	for _, m := range messages() {
		address := strings.Join(strings.Fields(m.text), "-")
		if other, taken := of[address]; taken {
			t.Errorf("%q and %q have one address", other, m.text)
		}
		of[address] = m.text
	}
}
