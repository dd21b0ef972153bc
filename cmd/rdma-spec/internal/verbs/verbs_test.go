// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// The bytes are written by hand after include/uapi/rdma/ib_user_verbs.h and the drivers' headers, as a little-endian
// kernel reads them.
func TestCommands(t *testing.T) {
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		t.Skip("the bytes below are little-endian")
	}
	const pointer = "efcdab8967452301 " // to the response
	for name, test := range map[string]struct {
		command  command
		response int
		input    []uint32
		want     string // the header: command, words in, words out
	}{
		"GET_CONTEXT of rxe": {getContext, contextSize, nil, "00000000 0400 0200" + pointer},
		"GET_CONTEXT of siw": {getContext, contextSize + dialects[SIW].contextRoom, dialects[SIW].context,
			"00000000 0400 0400" + pointer},
		"GET_CONTEXT of mlx4": {getContext, contextSize + dialects[MLX4].contextRoom, dialects[MLX4].context,
			"00000000 0400 0600" + pointer},
		"GET_CONTEXT of mlx5": {getContext, contextSize + dialects[MLX5].contextRoom, dialects[MLX5].context,
			"00000000 0600 2200" + pointer + "10000000 04000000"},
		"GET_CONTEXT of efa": {getContext, contextSize + dialects[EFA].contextRoom, dialects[EFA].context,
			"00000000 0600 2200" + pointer + "03000000 00000000"},
		"GET_CONTEXT of irdma": {getContext, contextSize + dialects[IRDMA].contextRoom, dialects[IRDMA].context,
			"00000000 0800 2200" + pointer + "00000000 05000000 0800000000000000"},
		"GET_CONTEXT of bnxt_re": {getContext, contextSize + dialects[BNXT].contextRoom, dialects[BNXT].context,
			"00000000 0400 2200" + pointer},
		"ALLOC_PD of efa":     {allocPD, pdSize + dialects[EFA].pdRoom, nil, "03000000 0400 0300" + pointer},
		"ALLOC_PD of irdma":   {allocPD, pdSize + dialects[IRDMA].pdRoom, nil, "03000000 0400 0300" + pointer},
		"ALLOC_PD of bnxt_re": {allocPD, pdSize + dialects[BNXT].pdRoom, nil, "03000000 0400 0900" + pointer},
		"REG_MR of irdma": {regMR, mrSize + dialects[IRDMA].mrRoom, registration(0x7f0011223000, 0x4000000, 7,
			dialects[IRDMA].registration),
			"09000000 0e00 0300" + pointer +
				"00302211007f0000 0000000400000000 00302211007f0000 07000000 01000000 00000000 00000000"},
		"ALLOC_PD of rxe":  {allocPD, pdSize, nil, "03000000 0400 0100" + pointer},
		"ALLOC_PD of mlx4": {allocPD, pdSize + dialects[MLX4].pdRoom, nil, "03000000 0400 0300" + pointer},
		"ALLOC_PD of mlx5": {allocPD, pdSize + dialects[MLX5].pdRoom, nil, "03000000 0400 0200" + pointer},
		"DEALLOC_PD":       {deallocPD, 0, []uint32{7}, "04000000 0300 0000 07000000"},
		"REG_MR": {regMR, mrSize, registration(0x7f0011223000, 0x4000000, 7, nil),
			"09000000 0c00 0300" + pointer + "00302211007f0000 0000000400000000 00302211007f0000 07000000 01000000"},
		"REG_MR of siw": {regMR, mrSize + dialects[SIW].mrRoom, registration(0x7f0011223000, 0x4000000, 7,
			dialects[SIW].registration),
			"09000000 0e00 0500" + pointer +
				"00302211007f0000 0000000400000000 00302211007f0000 07000000 01000000 00000000 00000000"},
		"DEREG_MR": {deregMR, 0, []uint32{9}, "0d000000 0300 0000 09000000"},
	} {
		got := encode(test.command, test.response, test.input...)
		if test.response > 0 {
			point(got, 0x0123456789abcdef)
		}
		if diff := cmp.Diff(strings.ReplaceAll(test.want, " ", ""), hex.EncodeToString(got)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// kernel answers commands as the kernel does, and refuses some of them.
type kernel struct {
	t      *testing.T
	refuse map[command]error
	mute   map[command]bool // carried out without a response
	said   []string
	open   int // file descriptors
}

func (k *kernel) write(text, response []byte) error {
	cmd := command(binary.NativeEndian.Uint32(text))
	k.said = append(k.said, cmd.String())
	if in, out := binary.NativeEndian.Uint16(text[4:]), binary.NativeEndian.Uint16(text[6:]); int(in)*4 != len(text) ||
		int(out)*4 != len(response) {
		k.t.Errorf("%s has %d words and room for %d, and says %d and %d", cmd, len(text)/4, len(response)/4, in, out)
	}
	if err := k.refuse[cmd]; err != nil {
		return err
	}
	if cmd == getContext {
		k.open++
	}
	if len(response) > 0 && !k.mute[cmd] {
		binary.NativeEndian.PutUint32(response, uint32(cmd)+100)
	}
	return nil
}

func (k *kernel) close(fd int) error {
	if fd != 100 {
		k.t.Errorf("closes file descriptor %d, want that of GET_CONTEXT", fd)
	}
	k.open--
	return nil
}

func (k *kernel) Close() error { k.open--; return nil }

func TestRegister(t *testing.T) {
	for name, test := range map[string]struct {
		refuse map[command]error
		mute   map[command]bool
		said   string
		err    string
	}{
		"all is well": {said: "GET_CONTEXT ALLOC_PD REG_MR DEREG_MR DEALLOC_PD"},
		"no context": {refuse: map[command]error{getContext: unix.EINVAL}, said: "GET_CONTEXT",
			err: "GET_CONTEXT: invalid argument"},
		"no PD": {refuse: map[command]error{allocPD: unix.EAGAIN}, said: "GET_CONTEXT ALLOC_PD",
			err: "ALLOC_PD: resource temporarily unavailable"},
		"memlock": {refuse: map[command]error{regMR: unix.ENOMEM}, said: "GET_CONTEXT ALLOC_PD REG_MR DEALLOC_PD",
			err: "REG_MR: cannot allocate memory"},
		"stays registered": {refuse: map[command]error{deregMR: unix.EBUSY},
			said: "GET_CONTEXT ALLOC_PD REG_MR DEREG_MR DEALLOC_PD", err: "DEREG_MR: device or resource busy"},
		"a context unwritten": {mute: map[command]bool{getContext: true}, said: "GET_CONTEXT",
			err: "GET_CONTEXT: the kernel did not write a response"},
		"a handle unwritten": {mute: map[command]bool{regMR: true}, said: "GET_CONTEXT ALLOC_PD REG_MR DEALLOC_PD",
			err: "REG_MR: the kernel did not write a response"},
	} {
		t.Run(name, func(t *testing.T) {
			k := &kernel{t: t, refuse: test.refuse, mute: test.mute, open: 1}
			c, err := newContext(k, dialects[MLX5])
			if err == nil {
				err = errors.Join(c.Register(make([]byte, 4096)), c.Close())
			}
			if got := strings.Join(k.said, " "); got != test.said {
				t.Errorf("commands %s, want %s", got, test.said)
			}
			if (err == nil) != (test.err == "") || err != nil && err.Error() != test.err {
				t.Errorf("error %v, want %s", err, test.err)
			}
			var failed *Error
			for cmd, refused := range test.refuse {
				if !errors.As(err, &failed) || failed.Command != cmd.String() || !errors.Is(err, refused) {
					t.Errorf("error %v is not %s of %s", err, refused, cmd)
				}
			}
			if leaked := k.open; leaked != 0 && !test.mute[getContext] {
				t.Errorf("%d file descriptors stay open", leaked)
			}
		})
	}
}

func TestRegister_noMemory(t *testing.T) {
	c, err := newContext(&kernel{t: t}, dialects[RXE])
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Register(nil); !errors.Is(err, unix.EINVAL) {
		t.Errorf("no memory: %v", err)
	}
}

func TestOpen(t *testing.T) {
	if _, err := Open(filepath.Join(scratch.Dir(t), "uverbs0"), RXE); !errors.Is(err, unix.ENOENT) {
		t.Errorf("no device: %v", err)
	}
	if _, err := Open("/dev/null", "cxgb4"); err == nil || Supported("cxgb4") {
		t.Error("a driver that is not known is opened")
	}
	// Any file takes commands as text, and writes no response.
	file := filepath.Join(scratch.Dir(t), "uverbs0")
	scratch.File(t, file, "", 0o600)
	before := descriptors(t)
	if _, err := Open(file, RXE); !errors.Is(err, errNoResponse) {
		t.Errorf("a file that is not a device: %v", err)
	}
	if after := descriptors(t); after != before {
		t.Errorf("%d file descriptors before, %d after", before, after)
	}
	got, err := os.ReadFile(file)
	if err != nil || len(got) != headerSize+pointerSize || binary.NativeEndian.Uint64(got[responseOffset:]) == 0 {
		t.Errorf("written: %x, %v, want a command with a pointer to its response", got, err)
	}
}

func descriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}
