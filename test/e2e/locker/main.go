// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Command locker locks memory in the ways in which programs do, for tests: `locker mmap BYTES` maps locked pages,
// `locker shm BYTES` locks a shared memory segment, `locker register BYTES` registers memory with /dev/infiniband/uverbs0
// and goes on. It prints "locked", or the kernel's error and exits with 1.
package main

import (
	"encoding/binary"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// shmLock is SHM_LOCK of linux/shm.h.
const shmLock = 11

func main() {
	if err := lock(os.Args[1:]); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("locked")
	if os.Args[1] == "register" {
		time.Sleep(time.Hour) // it ends with its container
	}
}

func lock(args []string) error {
	if len(args) != 2 {
		return fmt.Errorf("usage: locker mmap|shm|register BYTES")
	}
	size, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	switch args[0] {
	case "mmap":
		_, err = unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANONYMOUS|unix.MAP_PRIVATE|unix.MAP_LOCKED)
		return err
	case "register":
		return register(size)
	case "shm":
		return lockSharedMemory(size)
	}
	return fmt.Errorf("%q is none of mmap, shm, and register", args[0])
}

func lockSharedMemory(size int) error {
	id, err := unix.SysvShmGet(unix.IPC_PRIVATE, size, unix.IPC_CREAT|0o600)
	if err != nil {
		return err
	}
	defer func() { _, _ = unix.SysvShmCtl(id, unix.IPC_RMID, nil) }() // it ends with the container
	_, err = unix.SysvShmCtl(id, shmLock, nil)
	return err
}

// register opens the HCA, and registers memory in a protection domain, by the oldest commands that the kernel has.
func register(size int) error {
	hca, err := unix.Open("/dev/infiniband/uverbs0", unix.O_RDWR, 0)
	if err != nil {
		return err
	}
	memory, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANONYMOUS|unix.MAP_PRIVATE)
	if err != nil {
		return err
	}
	const getContext, allocDomain, registerMemory = 0, 3, 9
	if _, err := command(hca, getContext, 2); err != nil {
		return fmt.Errorf("opening: %w", err)
	}
	domain, err := command(hca, allocDomain, 1)
	if err != nil {
		return fmt.Errorf("a protection domain: %w", err)
	}
	const localWrite = 1 << 32 // the access flags follow the domain
	start := uint64(uintptr(unsafe.Pointer(&memory[0])))
	if _, err := command(hca, registerMemory, 3, start, uint64(size), start, uint64(domain)|localWrite); err != nil {
		return fmt.Errorf("registering: %w", err)
	}
	return nil
}

// command sends a command with its words to uverbs, and returns the first of so many 32-bit words of its answer.
func command(hca int, number uint32, answers int, words ...uint64) (uint32, error) {
	answer := make([]uint32, answers)
	request := binary.NativeEndian.AppendUint32(nil, number)
	request = binary.NativeEndian.AppendUint16(request, uint16(4+2*len(words)))
	request = binary.NativeEndian.AppendUint16(request, uint16(answers))
	request = binary.NativeEndian.AppendUint64(request, uint64(uintptr(unsafe.Pointer(&answer[0]))))
	for _, word := range words {
		request = binary.NativeEndian.AppendUint64(request, word)
	}
	_, err := unix.Write(hca, request)
	runtime.KeepAlive(answer)
	return answer[0], err
}
