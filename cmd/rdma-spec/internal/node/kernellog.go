// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdma-spec/rdma-spec/spec/files"
)

// KernelLog contains the lines of the kernel's log that concern RDMA. Times are seconds since boot.
type KernelLog struct {
	Now   float64      `json:"now"`
	Lines []KernelLine `json:"lines"`
}

// KernelLine is a line of the kernel's log.
type KernelLine struct {
	At   float64 `json:"at"`
	Text string  `json:"text"`
}

// aboutRDMA matches the head of a line that concerns RDMA: the driver, the module, or the device before ": ".
// aboutLinks matches the text of other lines.
var (
	aboutRDMA = regexp.MustCompile(`(?i)infiniband|rdma|\bmlx[45]|\bib_[a-z]|uverbs|peermem|\bbnxt_(en|re)|\befa\b|` +
		`\bhfi1|\bsiw\b|\brxe\b|\b(ice|i40e|idpf|mana|ionic|hns3|qede)\b`)
	aboutLinks = regexp.MustCompile(`: disagrees about version of symbol |link becomes ready|\blink (is )?(up|down)\b|` +
		`\bAER: |PCIe Bus Error`)
)

// longestHead is the length of a head with a driver, a PCI device, and a netdev. Longer text before ": " is not a head.
// For example, the kernel's command line can contain any text.
const longestHead = 60

// Kept returns the part of a kernel log line to keep. Lines about RDMA, the cards' drivers and links, and PCIe are kept
// unchanged. From denials of security modules, only the fields that describe the denial are kept. Other lines are
// dropped.
func Kept(line string) (kept string, ok bool) {
	if record, audit := strings.CutPrefix(line, "audit: "); audit {
		return denial(record)
	}
	head, _, found := strings.Cut(line, ": ")
	about := found && len(head) <= longestHead && !strings.Contains(head, "ommand line") &&
		(aboutRDMA.MatchString(head) || aboutLinks.MatchString(line))
	return line, about
}

// denialFields are the keys of the fields of a denial that are kept. A path is kept only if it is in /dev.
var denialFields = []string{"pid", "comm", "path", "name", "capability", "capname", "scontext", "tcontext", "tclass",
	"permissive", "apparmor", "operation", "profile", "class", "requested_mask", "denied_mask"}

var (
	denialHead  = regexp.MustCompile(`^(?:type=(?:1400|AVC|APPARMOR_DENIED) )(?:msg=)?(audit\([0-9.:]+\)): +`)
	denialVerb  = regexp.MustCompile(`^avc: +denied +\{ [a-z_ ]+ \}`)
	denialField = regexp.MustCompile(`(?:^|\s)([a-z_]+)=("[^"]*"|[^\s"]+)`)
)

// denial returns the part of an audit record to keep. Only denials of SELinux and AppArmor are kept, because other
// records, such as those about program starts, contain arguments.
func denial(record string) (kept string, ok bool) {
	head := denialHead.FindStringSubmatch(record)
	if head == nil {
		return "", false
	}
	rest := record[len(head[0]):]
	kept = "audit: type=1400 " + head[1] + ":"
	if verb := denialVerb.FindString(rest); verb != "" {
		kept += " " + verb + " for"
	}
	for _, field := range denialField.FindAllStringSubmatch(rest, -1) {
		value := strings.Trim(field[2], `"`)
		place := field[1] == "path" || field[1] == "name"
		if slices.Contains(denialFields, field[1]) && (!place || strings.HasPrefix(value, "/dev/")) {
			kept += " " + field[1] + "=" + field[2]
		}
	}
	return kept, strings.Contains(kept, "denied") || strings.Contains(kept, `apparmor="DENIED"`)
}

// readKernelLog reads the kernel's log if the root belongs to this node.
func readKernelLog(_ context.Context, root string) (KernelLog, error) {
	const bootID = "/proc/sys/kernel/random/boot_id"
	here, err := os.ReadFile(bootID)
	if err != nil {
		return KernelLog{}, err
	}
	if there, err := os.ReadFile(filepath.Join(root, bootID)); err != nil || string(there) != string(here) {
		return KernelLog{}, errors.New("the log is from another node")
	}
	log, err := readMessages()
	if err == nil {
		log.Lines = append(log.Lines, readAudit(root, log.Now, time.Now())...)
	}
	return log, err
}

// ofDenials matches denials that concern RDMA.
var ofDenials = regexp.MustCompile(`infiniband|uverbs|rdma|ipc_lock`)

// auditTime matches the time of an audit record in seconds: "msg=audit(1700000000.123:456)".
var auditTime = regexp.MustCompile(`msg=audit\(([0-9.]+):`)

// readAudit reads the last lines of auditd's log. If auditd is running, the kernel's log contains no denials.
func readAudit(root string, now float64, clock time.Time) (lines []KernelLine) {
	file, err := os.OpenFile(files.Below(root, "var/log/audit/audit.log"), os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil // auditd is not running, or only root can read the file
	}
	defer func() { _ = file.Close() }() // opened only for reading
	const most = 256 << 10
	if info, err := file.Stat(); err == nil {
		_, _ = file.Seek(max(0, info.Size()-most), io.SeekStart) // on error, read from the start
	}
	text, _ := io.ReadAll(io.LimitReader(file, most))
	for line := range strings.Lines(string(text)) {
		at := auditTime.FindStringSubmatch(line)
		kept, ok := denial(strings.TrimSpace(line))
		if at == nil || !ok || !ofDenials.MatchString(kept) {
			continue
		}
		if seconds, err := strconv.ParseFloat(at[1], 64); err == nil {
			ago := float64(clock.UnixNano())/1e9 - seconds
			lines = append(lines, KernelLine{At: now - ago, Text: kept})
		}
	}
	return lines
}

// readMessages reads /dev/kmsg, each read of which returns a record, "priority,sequence,microseconds,flags;text", or
// asks syslog(2).
func readMessages() (found KernelLog, err error) {
	const kmsg = "/dev/kmsg"
	file, err := unix.Open(kmsg, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	log := KernelLog{Lines: []KernelLine{}}
	if err != nil { // a container lacks this device, but might have CAP_SYSLOG
		text := make([]byte, 1<<20)
		n, failed := unix.Klogctl(unix.SYSLOG_ACTION_READ_ALL, text)
		if failed != nil {
			return found, &fs.PathError{Op: "open", Path: kmsg, Err: err}
		}
		log.Lines = append(log.Lines, ParseSyslog(string(text[:n]))...)
		return log.upToNow()
	}
	defer func() { _ = unix.Close(file) }() // opened only for reading
	record := make([]byte, 8<<10)
	_, _ = unix.Seek(file, 0, unix.SEEK_DATA) // skip cleared records (dmesg --clear); on error, start at the first
	for {
		n, err := unix.Read(file, record)
		if errors.Is(err, unix.EPIPE) || errors.Is(err, unix.EINTR) { // the oldest records were overwritten
			continue
		}
		if err != nil || n <= 0 { // EAGAIN: no more records
			break
		}
		if line, ok := ParseRecord(string(record[:n])); ok {
			log.Lines = append(log.Lines, line)
		}
	}
	return log.upToNow()
}

// upToNow keeps the last lines, and sets Now.
func (log KernelLog) upToNow() (KernelLog, error) {
	const most = 1000
	log.Lines = log.Lines[max(0, len(log.Lines)-most):]
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return KernelLog{}, err
	}
	log.Now = time.Duration(now.Nano()).Seconds()
	return log, nil
}

// syslogLine matches a line of the kernel itself in syslog(2): "<6>[ 12.345678] text".
var syslogLine = regexp.MustCompile(`(?m)^<[0-7]>\[ *([0-9]+\.[0-9]+)\] ?(.*)$`)

// ParseSyslog parses the output of syslog(2), and returns the lines that concern RDMA.
func ParseSyslog(text string) (lines []KernelLine) {
	for _, line := range syslogLine.FindAllStringSubmatch(text, -1) {
		at, err := strconv.ParseFloat(line[1], 64)
		if text, ok := Kept(line[2]); ok && err == nil {
			lines = append(lines, KernelLine{at, text})
		}
	}
	return lines
}

// ParseRecord parses a record of /dev/kmsg. It returns false if the kernel did not write the record, or if the record
// is not kept. Programs also write to /dev/kmsg, but their priority includes a facility, and is therefore 8 or more.
func ParseRecord(record string) (KernelLine, bool) {
	head, text, ok := strings.Cut(record, ";")
	fields := strings.Split(head, ",")
	if !ok || len(fields) < 3 || len(fields[0]) != 1 || fields[0] > "7" {
		return KernelLine{}, false
	}
	microseconds, err := strconv.ParseInt(fields[2], 10, 64)
	text, _, _ = strings.Cut(text, "\n")
	text, ok = Kept(text)
	return KernelLine{float64(microseconds) / 1e6, text}, ok && err == nil
}
