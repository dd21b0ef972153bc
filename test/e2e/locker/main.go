// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Command locker locks memory in the ways that programs use, for tests. `locker mmap BYTES` maps locked pages. `locker
// shm BYTES` locks a shared memory segment. `locker register BYTES` registers memory with /dev/infiniband/uverbs0, and
// keeps running. `locker fail BYTES` does the same after it has moved a queue pair into the state ERR. It prints
// "locked", or it prints the kernel's error and exits with 1.
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

// shmLock is SHM_LOCK in linux/shm.h.
const shmLock = 11

func main() {
	if err := lock(os.Args[1:]); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("locked")
	if os.Args[1] == "register" || os.Args[1] == "fail" {
		time.Sleep(time.Hour) // ends with its container
	}
}

func lock(args []string) error {
	if len(args) != 2 {
		return fmt.Errorf("usage: locker mmap|shm|register|fail BYTES")
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
		_, _, err = register(size)
		return err
	case "fail":
		hca, domain, err := register(size)
		if err == nil {
			err = failQueuePair(hca, domain)
		}
		return err
	case "shm":
		return lockSharedMemory(size)
	}
	return fmt.Errorf("%q is none of mmap, shm, register, and fail", args[0])
}

func lockSharedMemory(size int) error {
	id, err := unix.SysvShmGet(unix.IPC_PRIVATE, size, unix.IPC_CREAT|0o600)
	if err != nil {
		return err
	}
	defer func() { _, _ = unix.SysvShmCtl(id, unix.IPC_RMID, nil) }() // if this fails, the segment ends with the container
	_, err = unix.SysvShmCtl(id, shmLock, nil)
	return err
}

// register opens the HCA, and registers memory in a protection domain, with the kernel's oldest commands.
func register(size int) (hca int, domain uint32, err error) {
	hca, err = unix.Open("/dev/infiniband/uverbs0", unix.O_RDWR, 0)
	if err != nil {
		return 0, 0, err
	}
	memory, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANONYMOUS|unix.MAP_PRIVATE)
	if err != nil {
		return 0, 0, err
	}
	const getContext, allocDomain, registerMemory = 0, 3, 9
	if _, err := command(hca, getContext, 2); err != nil {
		return 0, 0, fmt.Errorf("opening: %w", err)
	}
	if domain, err = command(hca, allocDomain, 1); err != nil {
		return 0, 0, fmt.Errorf("a protection domain: %w", err)
	}
	const localWrite = 1 << 32 // the access flags follow the domain
	start := uint64(uintptr(unsafe.Pointer(&memory[0])))
	if _, err := command(hca, registerMemory, 3, start, uint64(size), start, uint64(domain)|localWrite); err != nil {
		return 0, 0, fmt.Errorf("registering: %w", err)
	}
	return hca, domain, nil
}

// failQueuePair creates a queue pair for a reliable connection on a software HCA, and moves it through INIT into ERR.
func failQueuePair(hca int, domain uint32) error {
	const createCQ, createQP, modifyQP = 18, 24, 26
	const noChannel, reliable, one = 1<<32 - 1, 2 << 40, 1<<32 | 1 // the queue pair's type is one byte of a word
	queue, err := command(hca, createCQ, 6, 0, 16, noChannel)
	if err != nil {
		return fmt.Errorf("a completion queue: %w", err)
	}
	pair, err := command(hca, createQP, 16, 0, uint64(domain)|uint64(queue)<<32, uint64(queue), one, one, reliable)
	if err != nil {
		return fmt.Errorf("a queue pair: %w", err)
	}
	// In struct ib_uverbs_modify_qp, the handle and the mask follow two destinations of 32 bytes each.
	const stateOnly, withPort, toINIT, toERR, firstPort = 1, 1 | 1<<3 | 1<<4 | 1<<5, 1, 6, 1
	for _, step := range [][2]uint64{{withPort, toINIT}, {stateOnly, toERR}} {
		if _, err := command(hca, modifyQP, 0, 0, 0, 0, 0, 0, 0, 0, 0,
			uint64(pair)|step[0]<<32, 0, 0, 0, step[1], firstPort); err != nil {
			return fmt.Errorf("a queue pair's state %d: %w", step[1], err)
		}
	}
	return nil
}

// command sends a command with its words to uverbs. answers is the number of 32-bit words in the kernel's answer, of
// which command returns the first. If there is an answer, the command begins with the answer's address.
func command(hca int, number uint32, answers int, words ...uint64) (uint32, error) {
	answer := make([]uint32, max(answers, 1))
	if answers > 0 {
		words = append([]uint64{uint64(uintptr(unsafe.Pointer(&answer[0])))}, words...)
	}
	request := binary.NativeEndian.AppendUint32(nil, number)
	request = binary.NativeEndian.AppendUint16(request, uint16(2+2*len(words)))
	request = binary.NativeEndian.AppendUint16(request, uint16(answers))
	for _, word := range words {
		request = binary.NativeEndian.AppendUint64(request, word)
	}
	_, err := unix.Write(hca, request)
	runtime.KeepAlive(answer)
	return answer[0], err
}
