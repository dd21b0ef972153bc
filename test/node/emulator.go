// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/rdma-spec/rdma-spec/test/node/wire"
	"github.com/rdma-spec/rdma-spec/test/testing/child"
)

// consoleLines is how many of the console's last lines are kept: enough for both traces of a lockup.
const consoleLines = 200

// lockupLimit is how long a CPU of the guest may stay in its kernel without a break. After that, the kernel panics.
const lockupLimit = time.Minute

// lockupSaid is what the guest's kernel then prints.
const lockupSaid = "Kernel panic - not syncing: softlockup"

// emulatedOnly are kernel arguments that halve the work of an emulated CPU for each program that starts. The emulator
// executes rep stosb and rep movsb byte by byte, so the kernel must not use them to clear pages, and must not clear two
// megabytes at a time. Without address randomization, code has the same address in each process, so it is translated
// only once.
const emulatedOnly = "clearcpuid=rep_good transparent_hugepage=never norandmaps"

// emulator is a running QEMU, with the port that leads to its guest.
type emulator struct {
	process *os.Process
	port    *os.File
	console *console

	sending sync.Mutex
	ended   chan struct{}
	err     error // set before ended is closed
}

// startEmulator starts QEMU, or a user-mode kernel. Its standard output is the guest's console. scratch is an empty
// directory for what the guest writes.
func startEmulator(parts PartSet, options Options, scratch string) (*emulator, error) {
	if options.Machine == "uml" {
		if err := raiseLimits(); err != nil {
			return nil, err
		}
	}
	program, args, err := arguments(parts, options, scratch)
	if err != nil {
		return nil, err
	}
	ends, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("make the port to the guest: %w", err)
	}
	theirs := os.NewFile(uintptr(ends[1]), "guest's end of the port")
	defer func() { _ = theirs.Close() }() // QEMU has its own copy by then
	e := &emulator{
		port:    os.NewFile(uintptr(ends[0]), "host's end of the port"),
		console: &console{also: options.Console},
		ended:   make(chan struct{}),
	}
	command := exec.Command(program, args...)
	command.ExtraFiles = []*os.File{theirs} // descriptor 3 in QEMU
	if options.cable != nil {
		command.ExtraFiles = append(command.ExtraFiles, options.cable.end) // 4
	}
	command.Stdout = e.console
	command.Stderr = e.console
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a terminal's Ctrl-C must not reach it, because this program ends it
	if err := child.Start(command); err != nil {
		_ = e.port.Close()
		return nil, fmt.Errorf("start the emulator: %w", err)
	}
	e.process = command.Process
	go func() {
		e.err = command.Wait()
		close(e.ended)
	}()
	return e, nil
}

// arguments returns the program that runs the guest, and its arguments.
func arguments(parts PartSet, options Options, scratch string) (name string, args []string, err error) {
	if options.Machine == "uml" {
		return umlArguments(parts, options, scratch)
	}
	if name, err = program("qemu-system-x86_64"); err != nil {
		return "", nil, err
	}
	args, err = qemuArguments(parts, options)
	return name, args, err
}

// kernelArguments returns the arguments of the guest's kernel, whatever runs it.
func kernelArguments(parts PartSet, kernel string, options Options) []string {
	args := []string{
		"panic=-1", "oops=panic", "softlockup_panic=1", fmt.Sprintf("sysctl.kernel.watchdog_thresh=%d",
			int(lockupLimit.Seconds()/2)), "net.ifnames=0",
		"rdma_node.parts=" + parts.dir, "rdma_node.kernel=" + kernel, fmt.Sprintf("rdma_node.hcas=%d", options.HCAs),
	}
	if options.Console == io.Discard {
		args = append(args, "quiet")
	}
	if options.cable != nil {
		args = append(args, fmt.Sprintf("rdma_node.name=rdma-node-%d", options.cable.number), "rdma_node.cable="+
			PairAddress(options.cable.number))
	}
	if options.Share != "" {
		args = append(args, "rdma_node.share="+options.Share)
	}
	return args
}

func qemuArguments(parts PartSet, options Options) ([]string, error) {
	kernel, err := filepath.EvalSymlinks(filepath.Join(parts.dir, "kernel"))
	if err != nil {
		return nil, fmt.Errorf("the node is not prepared: %w", err)
	}
	kernelCommand := append(kernelArguments(parts, kernel, options),
		"console=ttyS0", "mitigations=off", "random.trust_cpu=on", "cryptomgr.notests", "no_timer_check")
	cpu := "host"
	accel := "kvm"
	if options.Machine != "kvm" {
		cpu = "max,erms=off,fsrm=off"
		accel = "tcg,thread=multi"
		kernelCommand = append(kernelCommand, emulatedOnly)
	}
	args := []string{
		"-name", "rdma-node", "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-machine", "q35", "-accel", accel, "-cpu", cpu,
		"-smp", fmt.Sprint(options.CPUs), "-m", fmt.Sprint(options.Memory),
		"-kernel", filepath.Join(kernel, "vmlinux"),
		"-initrd", filepath.Join(parts.dir, "initramfs", "initramfs"),
		"-chardev", "stdio,id=console,signal=off", "-serial", "chardev:console",
		"-device", "virtio-serial-pci",
		"-chardev", "socket,id=port,fd=3", "-device", "virtserialport,chardev=port,name=" + wire.PortName,
		"-virtfs", "local,path=/,mount_tag=host,security_model=none,multidevs=remap,readonly=on",
		"-netdev", "user,id=net0", "-device", "virtio-net-pci,netdev=net0,romfile=",
		// UML locks the file even if it only reads it.
		"-drive", "file=" + filepath.Join(parts.dir, "disk", "disk.img") +
			",format=raw,if=virtio,snapshot=on,cache=unsafe,file.locking=off",
	}
	if options.cable != nil {
		args = append(args, options.cable.netdev(4)...)
	}
	if options.Share != "" {
		args = append(args, "-virtfs", "local,path="+strings.ReplaceAll(options.Share, ",", ",,")+
			",mount_tag=share,security_model=none,multidevs=remap")
	}
	return append(args, "-append", strings.Join(kernelCommand, " ")), nil
}

func (e *emulator) send(kind wire.Kind, value any) error {
	payload, err := json.Marshal(value)
	if err != nil {
		return err
	}
	return e.sendBytes(kind, payload)
}

func (e *emulator) sendBytes(kind wire.Kind, payload []byte) error {
	e.sending.Lock()
	defer e.sending.Unlock()
	return wire.Write(e.port, kind, payload)
}

// wait waits until QEMU has ended, and returns its error.
func (e *emulator) wait() error {
	<-e.ended
	return e.err
}

// stop ends QEMU at once, and waits until it has ended.
func (e *emulator) stop() error {
	select {
	case <-e.ended:
	default:
		if err := e.process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return fmt.Errorf("end the emulator: %w", err)
		}
		<-e.ended
	}
	return e.port.Close()
}

// console keeps the last lines that are written to it.
type console struct {
	also io.Writer

	mutex sync.Mutex
	lines []string
	open  string // the last line, while it is incomplete
}

func (c *console) Write(data []byte) (int, error) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	lines := strings.Split(c.open+strings.ReplaceAll(string(data), "\r", ""), "\n")
	c.open = lines[len(lines)-1]
	c.lines = append(c.lines, lines[:len(lines)-1]...)
	c.lines = c.lines[max(0, len(c.lines)-consoleLines):]
	_, _ = c.also.Write(data) // if this fails, the guest must continue
	return len(data), nil
}

func (c *console) last() []string {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	lines := append([]string(nil), c.lines...)
	if c.open != "" {
		lines = append(lines, c.open)
	}
	return lines
}
