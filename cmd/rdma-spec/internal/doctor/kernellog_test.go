// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"encoding/json"
	"errors"
	"io/fs"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseRecord(t *testing.T) {
	for record, want := range map[string]kernelLine{
		"6,1234,5678901,-;mlx5_core 0000:5e:00.0: firmware version: 16.35.2000\n SUBSYSTEM=pci\n DEVICE=+pci:0000:5e:00.0\n": {5.678901, "mlx5_core 0000:5e:00.0: firmware version: 16.35.2000"},
		"4,9,1000000,c,caller=T1;a;b": {1, "a;b"},
		"no record":                   {}, "6,1;x": {}, "6,1,x,-;y": {0, "y"},
	} {
		line, ok := parseRecord(record)
		if diff := cmp.Diff(want, line); diff != "" && ok || ok != (want.At != 0) {
			t.Errorf("%q: %v (-want +got):\n%s", record, ok, diff)
		}
	}
}

func TestAboutRDMA(t *testing.T) {
	for line, want := range map[string]bool{
		"nvidia_peermem: disagrees about version of symbol ib_register_peer_memory_client": true,
		"mlx5_core 0000:5e:00.0: Port module event: module 0, Cable unplugged":             true,
		"efa 0000:10:1b.0: reset": true, "hfi1 0000:5e:00.0: hfi1_0: link down": true,
		"usb 1-1: password=hunter2": false, "EXT4-fs (sda1): mounted": false, "ibm_acpi: loaded": false,
	} {
		if got := aboutRDMA.MatchString(line); got != want {
			t.Errorf("%s: %v", line, got)
		}
	}
}

// A denial of long ago is no longer a fault. A denial of now is one.
func TestDenialsEnd(t *testing.T) {
	line := kernelLine{100, `audit: type=1400 apparmor="DENIED" operation="open" name="/dev/infiniband/uverbs0"`}
	for now, want := range map[float64]int{3600: 1, 3701: 0} {
		text, err := json.Marshal(map[string]any{"answer": kernelLog{now, []kernelLine{line}}})
		if err != nil {
			t.Fatal(err)
		}
		node := open(t, map[string]string{AnswersFolder + "/" + string(QuestionKernelLog): string(text)}, nil)
		check := Check{ID: "d", Asks: []Question{QuestionKernelLog}}
		if got := denials(&View{node, &check}); len(got) != want {
			t.Errorf("%v s after boot: %+v", now, got)
		}
	}
}

// The log of this node is not that of a copy.
func TestKernelLogOfACopy(t *testing.T) {
	if _, err := KernelLog(t.TempDir())(t.Context()); err == nil || err.Error() != "it is another node's" {
		t.Error(err)
	}
	answer, err := KernelLog("/")(t.Context())
	log, _ := answer.(*kernelLog)
	switch {
	case errors.Is(err, fs.ErrPermission), errors.Is(err, fs.ErrNotExist):
		t.Skip(err)
	case err != nil || log.Now <= 0 || log.Lines == nil:
		t.Errorf("%v: %+v", err, log)
	}
}
