// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Command locker locks memory in the ways in which programs do, for tests: `locker mmap BYTES` maps locked pages,
// `locker shm BYTES` locks a shared memory segment. It prints "locked", or the kernel's error and exits with 1.
package main

import (
	"fmt"
	"os"
	"strconv"

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
}

func lock(args []string) error {
	if len(args) != 2 {
		return fmt.Errorf("usage: locker mmap|shm BYTES")
	}
	size, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	switch args[0] {
	case "mmap":
		_, err = unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANONYMOUS|unix.MAP_PRIVATE|unix.MAP_LOCKED)
		return err
	case "shm":
		return lockSharedMemory(size)
	}
	return fmt.Errorf("%q is neither mmap nor shm", args[0])
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
