// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package verbs

import "encoding/binary"

// command is a command of enum ib_uverbs_write_cmds in include/uapi/rdma/ib_user_verbs.h.
type command uint32

const (
	getContext command = 0
	allocPD    command = 3
	deallocPD  command = 4
	regMR      command = 9
	deregMR    command = 13
)

// String returns the command's name in the header, without its prefix.
func (c command) String() string {
	return map[command]string{getContext: "GET_CONTEXT", allocPD: "ALLOC_PD", deallocPD: "DEALLOC_PD", regMR: "REG_MR",
		deregMR: "DEREG_MR"}[c]
}

// Sizes in bytes. A command begins with struct ib_uverbs_cmd_hdr: u32 command, u16 in_words, u16 out_words. The units
// are words of 4 bytes, and in_words includes the header. If the command has a response, a u64 pointer to the response
// follows.
const (
	headerSize     = 8
	pointerSize    = 8
	wordSize       = 4
	contextSize    = 8  // ib_uverbs_get_context_resp: u32 async_fd, u32 num_comp_vectors
	pdSize         = 4  // ib_uverbs_alloc_pd_resp: u32 pd_handle
	mrSize         = 12 // ib_uverbs_reg_mr_resp: u32 mr_handle, u32 lkey, u32 rkey
	localWrite     = 1  // IB_ACCESS_LOCAL_WRITE: the HCA may write into the memory
	responseOffset = headerSize
)

// encode returns a command in native byte order. The pointer to the response is 0 until point sets it.
func encode(c command, response int, input ...uint32) []byte {
	size := headerSize + len(input)*wordSize
	if response > 0 {
		size += pointerSize
	}
	text := binary.NativeEndian.AppendUint32(make([]byte, 0, size), uint32(c))
	text = binary.NativeEndian.AppendUint16(text, uint16(size/wordSize))
	text = binary.NativeEndian.AppendUint16(text, uint16(response/wordSize))
	if response > 0 {
		text = binary.NativeEndian.AppendUint64(text, 0)
	}
	for _, word := range input {
		text = binary.NativeEndian.AppendUint32(text, word)
	}
	return text
}

// point sets a command's pointer to the response.
func point(text []byte, response uintptr) {
	binary.NativeEndian.PutUint64(text[responseOffset:], uint64(response))
}

// words returns the two words of a 64-bit field.
func words(field uint64) (first, second uint32) {
	text := binary.NativeEndian.AppendUint64(nil, field)
	return binary.NativeEndian.Uint32(text), binary.NativeEndian.Uint32(text[wordSize:])
}

// registration returns REG_MR's input for memory at an address: start, length, hca_va, pd_handle, access_flags, and the
// driver's data.
func registration(address, length uint64, pd uint32, driver []uint32) []uint32 {
	start0, start1 := words(address)
	length0, length1 := words(length)
	return append([]uint32{start0, start1, length0, length1, start0, start1, pd, localWrite}, driver...)
}

// unwritten is the initial value of a word in a response. This value is not a valid handle or file descriptor.
const unwritten = 0xffffffff
