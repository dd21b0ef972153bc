// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// QuestionKernelLog asks for the lines of the kernel's log that are about RDMA.
const QuestionKernelLog Question = "kernel-log.json"

// kernelLog is the answer. Times are seconds since boot.
type kernelLog struct {
	Now   float64      `json:"now"`
	Lines []kernelLine `json:"lines"`
}

type kernelLine struct {
	At   float64 `json:"at"`
	Text string  `json:"text"`
}

// kernelChecks are about what the kernel's log has.
func kernelChecks() []Check {
	return []Check{{
		ID: "module-symbols", Family: "kernel log",
		Title:    "No RDMA module was refused because it was built for other modules.",
		Messages: []string{"could not insert 'nvidia_peermem': Invalid argument", "disagrees about version of symbol"},
		Why:      "A module that was built against another ib_core is not loaded.",
		Reads:    []string{"sys/module/*"},
		Asks:     []Question{QuestionKernelLog},
		Look:     refusedModules,
	}, {
		ID: "security-denials", Family: "kernel log",
		Title:    "Neither SELinux nor AppArmor denied RDMA within the last hour.",
		Messages: []string{"avc: denied { ipc_lock }", `apparmor="DENIED"`},
		Why:      "A security module refuses what the device's mode and the container's capabilities allow.",
		Asks:     []Question{QuestionKernelLog},
		Look:     denials,
	}}
}

// aboutRDMA are the lines that the answer has.
var aboutRDMA = regexp.MustCompile(`(?i)infiniband|rdma|\bmlx[45]|\bib_[a-z]|uverbs|peermem|\bbnxt_re|\befa\b|\bhfi1|\bsiw\b|\brxe\b|disagrees about version|ipc_lock`)

// KernelLog answers QuestionKernelLog for the node below a root, if it is this one.
func KernelLog(root string) Ask {
	return func(context.Context) (any, error) {
		const bootID = "/proc/sys/kernel/random/boot_id"
		here, err := os.ReadFile(bootID)
		if err != nil {
			return nil, err
		}
		if there, err := os.ReadFile(filepath.Join(root, bootID)); err != nil || string(there) != string(here) {
			return nil, errors.New("it is another node's")
		}
		return readKernelLog()
	}
}

// readKernelLog reads /dev/kmsg: each read returns a record, "priority,sequence,microseconds,flags;text".
func readKernelLog() (*kernelLog, error) {
	file, err := os.OpenFile("/dev/kmsg", os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // it was only read
	connection, err := file.SyscallConn()
	if err != nil {
		return nil, err
	}
	log := &kernelLog{Lines: []kernelLine{}}
	record := make([]byte, 8<<10)
	err = connection.Control(func(fd uintptr) {
		for {
			n, err := unix.Read(int(fd), record)
			switch {
			case errors.Is(err, unix.EPIPE), errors.Is(err, unix.EINTR): // the oldest records are gone meanwhile
				continue
			case err != nil || n <= 0: // EAGAIN: that was the last
				return
			}
			if line, ok := parseRecord(string(record[:n])); ok && aboutRDMA.MatchString(line.Text) {
				log.Lines = append(log.Lines, line)
			}
		}
	})
	if err != nil {
		return nil, err
	}
	const most = 1000
	log.Lines = log.Lines[max(0, len(log.Lines)-most):]
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return nil, err
	}
	log.Now = time.Duration(now.Nano()).Seconds()
	return log, nil
}

func parseRecord(record string) (kernelLine, bool) {
	head, text, ok := strings.Cut(record, ";")
	fields := strings.Split(head, ",")
	if !ok || len(fields) < 3 {
		return kernelLine{}, false
	}
	microseconds, err := strconv.ParseInt(fields[2], 10, 64)
	text, _, _ = strings.Cut(text, "\n")
	return kernelLine{float64(microseconds) / 1e6, text}, err == nil
}

var refusedModule = regexp.MustCompile(`(?:^|\s)([a-z0-9_]+): disagrees about version of symbol ([A-Za-z0-9_]+)`)

// refusedModules finds modules that the kernel refused and that are still not loaded.
func refusedModules(v *View) []Finding {
	var log kernelLog
	if err := v.Ask(QuestionKernelLog, &log); err != nil {
		return []Finding{unknown("", fmt.Sprintf("The kernel's log cannot be read: %v.", err))}
	}
	var found []Finding
	seen := map[string]bool{}
	for _, line := range log.Lines {
		refused := refusedModule.FindStringSubmatch(line.Text)
		if refused == nil || seen[refused[1]] {
			continue
		}
		seen[refused[1]] = true
		if loaded, err := v.Exists("sys/module/" + refused[1]); loaded || err != nil {
			continue
		}
		cure := "Install the module's package again, after the one of OFED or DOCA, and: modprobe " + refused[1]
		if refused[1] == "nvidia_peermem" {
			cure = "Rebuild the GPU driver now that OFED or DOCA is installed (with the GPU operator, delete the node's driver pod), and: modprobe nvidia_peermem"
		}
		found = append(found, wrong("module "+refused[1], "The kernel refused it: it was built for another version of "+refused[2]+".", cure))
	}
	return found
}

var denial = regexp.MustCompile(`(?i)(avc:\s+denied|apparmor="DENIED").*(infiniband|uverbs|rdma_cm|ipc_lock)`)

// denials finds what a security module denied. Older denials do not count, so that the finding goes when the cause does.
func denials(v *View) []Finding {
	const recent = float64(60 * 60)
	var log kernelLog
	if err := v.Ask(QuestionKernelLog, &log); err != nil {
		return []Finding{unknown("", fmt.Sprintf("The kernel's log cannot be read: %v.", err))}
	}
	last, count := "", 0
	for _, line := range log.Lines {
		if log.Now-line.At < recent && denial.MatchString(line.Text) {
			last, count = line.Text, count+1
		}
	}
	if count == 0 {
		return nil
	}
	cure := "setsebool -P container_use_devices on"
	if strings.Contains(strings.ToLower(last), "apparmor") {
		cure = "Set securityContext.appArmorProfile.type of the container to Unconfined, or allow it in the profile."
	}
	const most = 200
	return []Finding{wrong("", fmt.Sprintf("%d denials, at last: %s", count, last[:min(len(last), most)]), cure)}
}
