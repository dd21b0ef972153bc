// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package why

import (
	"cmp"
	"slices"
	"strings"
)

// kind classifies a line.
type kind int

const (
	matters  kind = iota // an operation that failed
	weak                 // it matters if no other line is more specific, and the log contains no other problem
	follows              // a consequence of another line, or of another process
	harmless             // it looks like an error, but is harmless
	another              // a problem that is not about RDMA
	fact                 // a fact about the log that pairs.txt uses
	healthy              // a sign that an HCA works
	goesOn               // a sign that the program runs
	ends                 // a sign that the program ended
)

// The weights of lines that matter. The line with the greatest weight is the root. A line with the name of an operation
// is more specific than a program's sentence, and a kernel message is more specific than both.
const (
	ofKernel     = 90
	ofEvent      = 80
	ofCall       = 75
	ofCompletion = 70
	ofPhrase     = 60
	ofWeak       = 30
	withStatus   = 8 // is added
)

// reading is the meaning of a line.
type reading struct {
	kind      kind
	weight    int
	program   string
	operation string
	status    string
	detail    string
	causes    []string // by the words alone
	note      string   // of a line that does not matter
	open      bool     // the status may be on one of the next lines
}

// The general readers, for programs without messages in messages.txt. They find a function's name, or a verb and an
// RDMA noun, together with a word for failure. All expressions expect lowercase lines.
var (
	failure = []string{"fail", "err", "cannot", "can't", "can not", "couldn't", "could not", "unable", "returned",
		"refused", "denied", "null", "abort", "not supported", "not implemented", "no such", "invalid"}
	call = expression{"ibv_|rdma_|fi_|mlx5dv_|efadv_", lazily(`\b((?:ibv|rdma|fi|mlx5dv|efadv)_[a-z][a-z0-9_]*)`)}
	// Names with these prefixes that are not library functions, but types, values, or parts of programs.
	noCall = lazily(`^ibv_(?:wc|qp|qps|access|event|mtu|send|send_flags|transport|node|port|device|link|mr|context|` +
		`pd|cq|ah|ack_\w+|poll_cq|get_async_event|get_cq_event|wc_\w+|qps_\w+|access_\w+|event_\w+|mtu_\w+)$`)
	ourCall = lazily(`^(?:ibv_|mlx5dv_|efadv_|rdma_(?:accept|bind|connect|create|establish|get_(?:devices|request|cm_event)|` +
		`getaddrinfo|join|listen|migrate|reg|resolve|set_option)|fi_(?:accept|av_|cntr_open|connect|control|cq_|domain|enable|` +
		`endpoint|ep_bind|eq_|fabric|getinfo|inject|listen|mr_|passive_ep|pep_bind|read|recv|scalable_ep|send|setopt|t(?:send|recv|` +
		`inject)|write)|fi_msg)`)
	aliases = strings.NewReplacer("ibv_exp_", "ibv_", "ibv_cmd_", "ibv_", "_iova2", "", "_iova", "")
	renamed = map[string]string{
		"fi_mr_regattr": "fi_mr_reg", "fi_mr_regv": "fi_mr_reg", "rdma_create_qp": "ibv_create_qp",
		"rdma_create_qp_ex": "ibv_create_qp", "rdma_reg_msgs": "ibv_reg_mr", "rdma_reg_read": "ibv_reg_mr",
		"rdma_reg_write": "ibv_reg_mr", "ibv_create_qp_ex": "ibv_create_qp", "mlx5dv_create_qp": "ibv_create_qp",
		"efadv_create_qp_ex": "ibv_create_qp", "ibv_create_cq_ex": "ibv_create_cq", "mlx5dv_create_cq": "ibv_create_cq",
		"efadv_create_cq": "ibv_create_cq", "ibv_create_srq_ex": "ibv_create_srq", "ibv_query_device_ex": "ibv_query_device",
		"efadv_query_device": "ibv_query_device", "mlx5dv_query_device": "ibv_query_device",
		"ibv_query_gid_ex":   "ibv_query_gid",
		"mlx5dv_open_device": "ibv_open_device", "rdma_listen": "rdma_bind_addr", "ibv_get_devices": "ibv_get_device_list",
		"ibv_post_srq_recv": "ibv_post_recv", "fi_domain2": "fi_domain", "fi_endpoint2": "fi_endpoint",
		"rdma_connect_ece": "rdma_connect", "ibv_req_notify_cq": "ibv_create_cq", "rdma_create_srq": "ibv_create_srq",
	}
	state    = lazily(`\b(?:next state|to|state) ?:?'?"?(?:ibv_qps_)?(init|rtr|rts|err|reset|sqd)\b|[(,] ?(init|rtr|rts)\b|\b(init|rtr|rts)\b`)
	verbNoun = []struct {
		expression
		is string
	}{
		{expression{"mr|memory region", lazily(`\b(?:regist\w*|reg|creat\w*|alloc\w*)\b.{0,24}\b(?:mrs?|memory regions?)\b`)}, "ibv_reg_mr"},
		{expression{"memory|buffer|mem", lazily(`\bregist\w* .{0,40}\b(?:memory|buffers?|mem|gpu memory)\b|\b(?:memory|buffers?) registration\b`)}, "ibv_reg_mr"},
		{expression{"qp|queue pair", lazily(`\b(?:modif\w*|chang\w*|transition\w*|mov\w*|bring\w*|set\w*)\b.{0,24}\b(?:qps?|queue pairs?)\b`)}, "ibv_modify_qp"},
		{expression{"qp|queue pair", lazily(`\b(?:qps?|queue pairs?)\b.{0,16}\bto (?:init|rtr|rts)\b`)}, "ibv_modify_qp"},
		{expression{"qp|queue pair", lazily(`\b(?:creat\w*|alloc\w*)\b.{0,24}\b(?:qps?|queue pairs?)\b`)}, "ibv_create_qp"},
		{expression{"cq|completion queue", lazily(`\b(?:creat\w*|alloc\w*)\b.{0,24}\b(?:cqs?|completion queues?)\b`)}, "ibv_create_cq"},
		{expression{"cq|completion queue", lazily(`\bresiz\w*\b.{0,24}\b(?:cqs?|completion queues?)\b|\bcq resize\b`)}, "ibv_resize_cq"},
		{expression{"srq|shared receive", lazily(`\b(?:creat\w*|alloc\w*)\b.{0,24}\b(?:srqs?|shared receive queues?)\b`)}, "ibv_create_srq"},
		{expression{"pd|protection domain", lazily(`\b(?:creat\w*|alloc\w*)\b.{0,24}\b(?:pds?|protection domains?)\b`)}, "ibv_alloc_pd"},
		{expression{"ah|address handle", lazily(`\b(?:creat\w*|alloc\w*)\b.{0,24}\b(?:ah|address handles?)\b`)}, "ibv_create_ah"},
		{expression{"gid", lazily(`\b(?:quer\w*|get\w*|find\w*|read\w*)\b.{0,24}\bgids?\b`)}, "ibv_query_gid"},
		{expression{"open", lazily(`\b(?:open\w*)\b.{0,24}\b(?:(?:ib|rdma|rnic|hca|verbs|roce|infiniband)\b.{0,12}devices?|device:? '?"?(?:mlx[45]|bnxt_re|irdma|rxe|efa|erdma|roce|ibp|rocep)\w*)`)}, "ibv_open_device"},
		{expression{"port", lazily(`\b(?:quer\w*)\b.{0,24}\b(?:ib|rdma|hca)?\b.{0,4}\bport\b.{0,24}\b(?:attr\w*|ib|rdma)`)}, "ibv_query_port"},
		{expression{"device", lazily(`\b(?:get\w*|list\w*|find\w*|enumerat\w*)\b.{0,24}\b(?:ib|rdma|verbs|rnic|infiniband) devices?( list)?\b`)}, "ibv_get_device_list"},
		{expression{"rout", lazily(`\bresolv\w*\b.{0,24}\b(?:rdma )?routes?\b|\broute resolution\b`)}, "rdma_resolve_route"},
		{expression{"post", lazily(`\b(?:post\w*)\b.{0,16}\b(?:sends?|recvs?|receives?)\b.{0,24}\b(?:wr|work request|qp)\b`)}, "ibv_post_send"},
	}

	firmware    = expression{"op_mod", lazily(`\b([a-z][a-z0-9_]{3,40})\(0x[0-9a-f]+\) op_mod\(0x[0-9a-f]+\) failed, status ([a-z ]+)\(0x[0-9a-f]+\), syndrome \((0x[0-9a-f]+)\)`)}
	fwTimeout   = expression{"timeout|completion", lazily(`\b([a-z][a-z0-9_]{3,40})\(0x[0-9a-f]+\) (?:timeout\. will cause|no done completion|timeout, will)`)}
	efaCommand  = expression{"comp_status", lazily(`failed to process command ([a-z_]+) \(opcode \d+\) comp_status \d+ err -(\d+)`)}
	asyncEvent  = expression{"async", lazily(`(?:got async event ?: |async (?:fatal )?event(?: on [^:]*?)?: |ib async event on [^:]+: )([a-z0-9_ /-]{4,60})`)}
	cmEvent     = expression{"rdma_cm_event", lazily(`\brdma_cm_event_(addr_error|route_error|connect_error|unreachable|rejected|device_removal)\b`)}
	rejected    = expression{"rejected", lazily(`rejected: status (\d+) \(([^)]{1,40})\)`)}
	device      = lazily(`(?i)\b((?:mlx[45]|bnxt_re|irdma|rxe|siw|efa|erdma|qedr|hns|hfi1|mthca|cxgb4|rdmap|rocep?|ibp|mana)_?[a-z0-9]*\d[a-z0-9_]*)\b`)
	rank        = lazily(`^(?:\[?\d{4}-\d\d-\d\d[T ][0-9:.,Z+-]{8,20}\]? ?:? ?)?(?:\(?[A-Za-z]*Worker\w* (?:pid|rank)=(\w+)|\[(?:rank)?(\d+)(?:,(\d+))?\](?:<std(?:out|err)>)?:?|([\w.-]{1,60}:\d+:\d+) \[\d+\]|\[([\w.-]{1,60}:\d+)(?::\w+)*\s*\])`)
	userCM      = map[string]string{"addr_error": "rdma_resolve_addr", "route_error": "rdma_resolve_route"}
	programName = []struct{ literal, name string }{
		{"nccl", "NCCL"}, {"rccl", "RCCL"}, {"ucx ", "UCX"}, {"libfabric", "libfabric"},
		{"net/ofi", "aws-ofi-nccl"}, {"nvshmem", "NVSHMEM"},
		{"rdma_context.cpp", "Mooncake"}, {"rdma_endpoint.cpp", "Mooncake"}, {"rdma_transport.cpp", "Mooncake"},
		{"nvmf_rdma", "SPDK"}, {"nvme_rdma", "SPDK"}, {"rdma.c:", "SPDK"}, {"mlx5_core", "kernel"},
		{"infiniband mlx", "kernel"}, {"librdmacm", "librdmacm"},
		{"libibverbs", "libibverbs"}, {"gasnet", "GASNet"}, {"gloo", "Gloo"}, {"mscclpp", "MSCCL++"}, {"kubelet", "kubelet"},
	}
)

// read returns the meaning of a line. low is the line in lowercase. hits are the messages whose longest part the line
// contains.
func read(low string, hits []int) (reading, bool) {
	best, found := known(low, hits)
	if found && best.kind > weak {
		return best, true
	}
	if !found || best.kind == weak {
		if r, ok := general(low); ok && (!found || r.weight > best.weight) {
			best = r
			found = true
		}
	}
	if !found {
		return reading{}, false
	}
	switch {
	case best.status != "" || best.kind > weak:
	case best.operation == "completion":
		if c := completion(low); c > 0 {
			best.status = completions[c].name
			best.detail = vendorError(low)
		}
	default:
		best.status = errno(low)
	}
	switch best.status {
	case "-":
		best.status = ""
	case "":
		best.open = true
	}
	if best.kind <= weak && best.status != "" {
		best.weight += withStatus
	}
	for _, p := range programName {
		if best.program == "" && strings.Contains(low, p.literal) {
			best.program = p.name
		}
	}
	return best, true
}

// known returns the reading of the message with the most fixed text in the line.
func known(low string, hits []int) (best reading, found bool) {
	size := 0
	for _, i := range hits {
		m := &messages()[i]
		if m.kind == fact || m.size() <= size || !m.isIn(low) {
			continue
		}
		size = m.size()
		found = true
		best = reading{kind: m.kind, weight: cmp.Or(m.weight, ofPhrase), program: m.program, operation: m.operation,
			status: m.status, causes: m.causes, note: m.note}
		if m.kind == weak {
			best.weight = cmp.Or(m.weight, ofWeak)
		}
		if best.operation == modifyQP {
			best.operation += " to " + stateOf(low)
		}
	}
	return best, found
}

const modifyQP = "ibv_modify_qp"

// stateOf returns the target state of a queue pair. The default is RTR, because most changes to RTR fail, and older
// programs do not print the state.
func stateOf(low string) string {
	if _, after, found := strings.Cut(low, "next state"); found {
		low = "next state" + after
	}
	m := state.FindStringSubmatch(low)
	for _, name := range append(m, "rtr")[min(1, len(m)):] {
		if name != "" {
			return strings.ToUpper(name)
		}
	}
	return "RTR"
}

// general returns the reading of a line from words that all programs use.
func general(low string) (reading, bool) {
	if m := firmware.find(low); m != nil {
		return reading{weight: ofKernel, program: "kernel", operation: "firmware " + strings.ToUpper(m[1]), status: m[2],
			detail: "syndrome " + m[3]}, true
	}
	if m := fwTimeout.find(low); m != nil {
		return reading{weight: ofKernel, program: "kernel", operation: "firmware " + strings.ToUpper(m[1]),
			status: "timeout"}, true
	}
	if m := efaCommand.find(low); m != nil {
		return reading{weight: ofKernel, program: "kernel", operation: "firmware " + strings.ToUpper(m[1]),
			status: errno("err (-" + m[2] + ")")}, true
	}
	if m := asyncEvent.find(low); m != nil {
		return event(strings.TrimSpace(m[1])), true
	}
	if c := completion(low); c > 0 {
		r := reading{weight: ofCompletion, operation: "completion", status: completions[c].name, detail: vendorError(low)}
		if c == 5 {
			r.kind = follows
			r.note = causes()["flushed"].Text
		}
		return r, true
	}
	if m := cmEvent.find(low); m != nil && !strings.Contains(low, "( expected )") {
		operation := userCM[m[1]]
		if operation == "" { // the number beside it is a reason of its own
			return reading{weight: ofCall, operation: "rdma_connect", status: strings.ReplaceAll(m[1], "_", " ")}, true
		}
		return reading{weight: ofCall, operation: operation, status: errno(low)}, true
	}
	if m := rejected.find(low); m != nil {
		return reading{weight: ofCall, operation: "rdma_connect", status: "rejected", detail: m[2]}, true
	}
	fails := slices.ContainsFunc(failure, func(word string) bool { return strings.Contains(low, word) })
	if !fails && errno(low) == "" {
		return reading{}, false
	}
	for _, m := range call.all(low) {
		if !ourCall.MatchString(m[1]) || noCall.MatchString(m[1]) {
			continue
		}
		operation := operationOf(m[1])
		if operation == modifyQP {
			operation += " to " + stateOf(low)
		}
		return reading{weight: ofCall, operation: operation}, true
	}
	low = strings.ReplaceAll(low, "cannot allocate memory", "")
	for _, v := range verbNoun {
		if v.find(low) != nil {
			operation := v.is
			if operation == modifyQP {
				operation += " to " + stateOf(low)
			}
			return reading{weight: ofPhrase, operation: operation}, true
		}
	}
	return reading{}, false
}

// operationOf returns the operation of a function.
func operationOf(name string) string {
	name = aliases.Replace(name)
	if other := renamed[name]; other != "" {
		return other
	}
	return name
}

// passing matches events that are not errors.
var passing = lazily(`gid table change|reregistration|port active|communication established|last wqe|speed ch`)

// event returns the reading of an asynchronous event of an HCA.
func event(words string) reading {
	r := reading{weight: ofEvent, operation: "asynchronous event", status: words}
	switch {
	case passing.MatchString(words):
		r.kind = harmless
		r.note = "harmless: an address or a port changed, and programs continue to run"
	case strings.Contains(words, "work queue"), strings.Contains(words, "access error"), strings.Contains(words, "qp"):
		r.weight = ofPhrase // the completion with an error says more
	}
	return r
}
