// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package why

import (
	"strconv"
	"strings"
)

// errnos are the Linux errors that memory registration and queue pair connections can return, with their names,
// numbers, and the texts of C libraries. Other numbers are not treated as an errno.
var errnos = []struct {
	name   string
	number int
	texts  []string // in small letters
}{
	{"EPERM", 1, []string{"operation not permitted"}},
	{"ENOENT", 2, []string{"no such file or directory"}},
	{"EINTR", 4, []string{"interrupted system call"}},
	{"EIO", 5, []string{"input/output error"}},
	{"ENXIO", 6, []string{"no such device or address"}},
	{"EBADF", 9, []string{"bad file descriptor"}},
	{"EAGAIN", 11, []string{"resource temporarily unavailable"}},
	{"ENOMEM", 12, []string{"cannot allocate memory", "outofmemory"}},
	{"EACCES", 13, []string{"permission denied"}},
	{"EFAULT", 14, []string{"bad address"}},
	{"EBUSY", 16, []string{"device or resource busy"}},
	{"EEXIST", 17, []string{"file exists"}},
	{"ENODEV", 19, []string{"no such device"}},
	{"EINVAL", 22, []string{"invalid argument"}},
	{"EMFILE", 24, []string{"too many open files"}},
	{"ENOTTY", 25, []string{"inappropriate ioctl for device"}},
	{"ENOSPC", 28, []string{"no space left on device"}},
	{"ERANGE", 34, []string{"numerical result out of range"}},
	{"ENOSYS", 38, []string{"function not implemented"}},
	{"ENODATA", 61, []string{"no data available"}},
	{"EPROTO", 71, []string{"protocol error"}},
	{"EOVERFLOW", 75, []string{"value too large for defined data type"}},
	{"EPROTONOSUPPORT", 93, []string{"protocol not supported"}},
	{"EOPNOTSUPP", 95, []string{"operation not supported"}},
	{"EADDRINUSE", 98, []string{"address already in use"}},
	{"EADDRNOTAVAIL", 99, []string{"cannot assign requested address"}},
	{"ENETDOWN", 100, []string{"network is down"}},
	{"ENETUNREACH", 101, []string{"network is unreachable"}},
	{"ECONNRESET", 104, []string{"connection reset by peer"}},
	{"ENOBUFS", 105, []string{"no buffer space available"}},
	{"ETIMEDOUT", 110, []string{"connection timed out"}},
	{"ECONNREFUSED", 111, []string{"connection refused"}},
	{"EHOSTUNREACH", 113, []string{"no route to host"}},
	{"EREMOTEIO", 121, []string{"remote i/o error"}},
}

// frames match the text around an errno's number. A bare number is not an errno.
var frames = []expression{
	{`errno`, lazily(`\berrno[ :=(]{0,3}(?:is |code )?-?(\d+)`)},
	{`failed with`, lazily(`\bfailed with (?:error|status|code|rc|ret|errno)?[ :=]{0,2}-?(\d+)\b`)},
	{`=|: |:-`, lazily(`\b(?:rc|ret|retval|res)[:=] ?-?(\d+)\b`)},
	{`code: |os error`, lazily(`\bos error (\d+)|\bcode: (\d+), kind:`)},
	{`error code`, lazily(`\berror code:? ?-?(\d+)`)},
	{`err`, lazily(`\berr(?:or)?[ :=(]{1,2}-(\d+)\b`)},
	{`err`, lazily(`\berr(?:or)?(?:: ?|=)(\d+)\b`)},
	{`return|code`, lazily(`\b(?:returned|return|returns|code)[ :=]{1,2}-(\d+)\b`)},
	{`(-`, lazily(`\(-(\d+)\)`)},
	{`-`, lazily(`[: ]-(\d+) ?\(`)},
	{`non-zero status`, lazily(`\bnon-zero status: (\d{2,3})\b`)},
	{`[`, lazily(`\[(\d+)\]$`)},
	{`failed`, lazily(`\bfailed \(?(\d{1,3})\)?$`)},
	{`-`, lazily(`: -(\d+)$`)},
}

// byNumber and byName, in small letters, find an errno.
var (
	byNumber = map[int]string{}
	byName   = errnoNames()
)

func errnoNames() map[string]string {
	names := map[string]string{"enotsup": "EOPNOTSUPP"}
	for _, e := range errnos {
		byNumber[e.number] = e.name
		names[strings.ToLower(e.name)] = e.name
	}
	return names
}

// expression is a regular expression that is tried only on lines with one of its literals, which are separated by |.
// Most lines contain none of them.
type expression struct {
	literals string
	*pattern
}

// find returns the first match in a line, with its groups.
func (e expression) find(line string) []string {
	for literal := range strings.SplitSeq(e.literals, "|") {
		if strings.Contains(line, literal) {
			return e.FindStringSubmatch(line)
		}
	}
	return nil
}

// all returns all matches in a line.
func (e expression) all(line string) [][]string {
	if e.find(line) == nil {
		return nil
	}
	return e.FindAllStringSubmatch(line, 8)
}

// errno returns the errno in a lowercase line, by its text, its name, or its number, in this order, or "" if the line
// contains no errno. The text is the most reliable, because some programs also print numbers that are not an errno.
func errno(line string) string {
	found := ""
	at := len(line)
	for _, e := range errnos {
		for _, text := range e.texts {
			// What is printed first is nearest to the call. "no such device" is the beginning of another one.
			if i := strings.Index(line, text); i >= 0 && i < at {
				found = e.name
				at = i
			}
		}
	}
	if found != "" {
		return found
	}
	notOfName := func(r rune) bool { return r != '_' && (r < 'a' || r > 'z') }
	for word := range strings.FieldsFuncSeq(line, notOfName) {
		if name := byName[strings.TrimPrefix(word, "fi_")]; name != "" {
			return name
		}
	}
	for _, frame := range frames {
		for i, number := range frame.find(line) {
			if n, err := strconv.Atoi(number); i > 0 && err == nil && byNumber[n] != "" {
				return byNumber[n]
			}
		}
	}
	return ""
}

// completions are the statuses of a work completion, by number. words are the texts of libibverbs and UCX.
var completions = []struct {
	name  string
	words []string
}{
	0: {"IBV_WC_SUCCESS", nil},
	1: {"IBV_WC_LOC_LEN_ERR", []string{"local length error", "local length on"}},
	2: {"IBV_WC_LOC_QP_OP_ERR", []string{"local qp operation error", "local qp operation on", "local qp operation err"}},
	3: {"IBV_WC_LOC_EEC_OP_ERR", []string{"local ee context operation error"}},
	4: {"IBV_WC_LOC_PROT_ERR", []string{"local protection error", "local protection on"}},
	5: {"IBV_WC_WR_FLUSH_ERR", []string{"work request flushed error", "wr flushed", "work request flushed"}},
	6: {"IBV_WC_MW_BIND_ERR", []string{"memory window bind error", "memory management operation error"}},
	7: {"IBV_WC_BAD_RESP_ERR", []string{"bad response on"}},
	8: {"IBV_WC_LOC_ACCESS_ERR", []string{"local access error"}},
	9: {"IBV_WC_REM_INV_REQ_ERR", []string{"remote invalid request error", "invalid-request-error",
		"remote invalid request on"}},
	10: {"IBV_WC_REM_ACCESS_ERR", []string{"remote access error", "remote access on"}},
	11: {"IBV_WC_REM_OP_ERR", []string{"remote operation error", "remote op on", "remote qp on"}},
	12: {"IBV_WC_RETRY_EXC_ERR", []string{"transport retry counter exceeded", "transport retry count exceeded"}},
	13: {"IBV_WC_RNR_RETRY_EXC_ERR", []string{"rnr retry counter exceeded", "receiver-not-ready retry count exceeded",
		"rnr retry count exceeded"}},
	14: {"IBV_WC_LOC_RDD_VIOL_ERR", nil},
	15: {"IBV_WC_REM_INV_RD_REQ_ERR", []string{"remote invalid rd request"}},
	16: {"IBV_WC_REM_ABORT_ERR", []string{"remote aborted"}},
	17: {"IBV_WC_INV_EECN_ERR", nil},
	18: {"IBV_WC_INV_EEC_STATE_ERR", nil},
	19: {"IBV_WC_FATAL_ERR", nil},
	20: {"IBV_WC_RESP_TIMEOUT_ERR", nil},
	21: {"IBV_WC_GENERAL_ERR", nil},
}

// syndromes maps mlx5 syndromes, which UCX and the kernel print, to completion statuses.
var syndromes = map[int64]int{1: 1, 2: 2, 4: 4, 5: 5, 6: 6, 0x10: 7, 0x11: 8, 0x12: 9, 0x13: 10, 0x14: 11, 0x15: 12,
	0x16: 13, 0x22: 16}

var (
	completionName   = expression{"wc_", lazily(`\bibv?_wc_([a-z_]+_err)\b`)}
	completionNumber = []expression{
		{`got completion`, lazily(`got completion\b.*?\b(?:error|status)[ =](?:[a-z_]+\()?(\d+)`)},
		{`failed status`, lazily(`\bfailed status (\d+): wr_id`)},
		{`ibv_wc_success`, lazily(`\bibv_wc_success[. ].*?\b(\d+)(?: vs |, 0)`)},
		{`status`, lazily(`\b(?:wc|cqe?|completion|work item|work request)\b.{0,60}?\bstatus:?[ =(]{1,2}(\d+)`)},
		{`status`, lazily(`\bwc(?:\[\w+\])?(?:\.|->)? ?status[ :=(]{1,3}(\d+)`)},
		{`completion|cqe|wc|cq`, lazily(`\b(?:completion|cqe?|wc) (?:with )?(?:error|failed)\b[^0-9]{0,20}\b(\d+)\b`)},
		{`status: (`, lazily(`\bstatus: \((\d+)\): `)},
		{`poll`, lazily(`\b(?:poll_?cq|poll cq|ibv_poll_cq)\b.{0,60}?\bstatus[ :=(]{1,3}(\d+)`)},
	}
	syndrome = expression{"synd", lazily(`\bsynd(?:rome)? 0x([0-9a-f]{1,2})[ ,].{0,12}vend`)}
	vendor   = lazily(`\b(?:vend(?:or)?[_ ]?(?:err(?:or)?|synd\w*|code)?|syndrom)[ :=]{1,3}(0x[0-9a-f]+|\d+)`)
)

// completion returns the status of a work completion in a lowercase line, or -1 if the line contains no status.
func completion(line string) int {
	for _, m := range completionName.all(line) {
		for i, c := range completions {
			if strings.ToLower(c.name) == "ibv_wc_"+m[1] {
				return i
			}
		}
	}
	if m := syndrome.find(line); m != nil {
		n, _ := strconv.ParseInt(m[1], 16, 64) // it matches
		if status, known := syndromes[n]; known {
			return status
		}
	}
	for _, number := range completionNumber {
		if m := number.find(line); m != nil {
			if n, err := strconv.Atoi(m[1]); err == nil && n > 0 && n < len(completions) {
				return n
			}
		}
	}
	for i, c := range completions {
		for _, text := range c.words {
			if strings.Contains(line, text) {
				return i
			}
		}
	}
	return -1
}

// vendorError returns the vendor error of a completion as a number, or "" if the line contains no vendor error.
func vendorError(line string) string {
	m := vendor.FindStringSubmatch(line)
	if m == nil {
		return ""
	}
	n, err := strconv.ParseUint(m[1], 0, 32)
	if err != nil {
		return ""
	}
	return "vendor error " + strconv.FormatUint(n, 10)
}
