// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package hardware

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/rdma-spec/rdma-spec/cmd/internal/cli"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node"
	"github.com/rdma-spec/rdma-spec/spec/hca"
)

// kernelChecks returns the checks of the kernel log.
func kernelChecks() []doctor.Check {
	return []doctor.Check{{
		ID: "hca-errors", Family: "kernel log", Title: "Neither the kernel log nor the PCIe error counters show HCA errors.",
		Impact: "If an HCA fails intermittently, jobs slow down or stop.",
		Reads:  []string{pciDevices + "*/aer_dev_fatal"}, Needs: []string{"hca-answers"}, Look: hcaErrors,
	}, {
		ID: "module-symbols", Family: "kernel log",
		Title: "The kernel loaded all RDMA modules.",
		Impact: "The kernel does not load a module that was built against a different ib_core, so the module's features " +
			"are missing.",
		Reads: append([]string{"sys/module/*"}, dmaBUFReads...), Look: withLog(refusedModules),
	}, {
		ID: "security-denials", Family: "kernel log",
		Title:  "SELinux and AppArmor have not denied access to RDMA in the last hour.",
		Impact: "The security module denies access that the device node's mode and the container's capabilities allow.",
		Look:   withLog(Denials),
	}}
}

// withLog calls look with the kernel log.
func withLog(look func(*doctor.View, node.KernelLog) []doctor.Finding) doctor.Look {
	return func(v *doctor.View) []doctor.Finding {
		log, err := v.KernelLog()
		if err != nil { // hca-errors reports the error
			return []doctor.Finding{{Status: doctor.Skipped, Text: "The check depends on hca-errors.", Root: doctor.Unknown}}
		}
		return look(v, log)
	}
}

// recent is the age, in seconds, up to which a log line counts as current.
const recent = float64(60 * 60)

const ofCable = "Reseat or replace the cable or the transceivers at both ends. To check the result, run: "

// trouble is a problem of an HCA that drivers log.
type trouble struct {
	lines *regexp.Regexp
	what  string
	least int            // the number of lines within an hour that is a fault
	ends  *regexp.Regexp // the lines that end the problem; nil if the problem passes by itself
	fix   func(device string, t hca.Tools) string
}

// count returns how often an HCA had the trouble, how often within the last hour, and the last line. now is the number
// of lines that still count: the lines of the last hour and, on a port without a link, all lines about the cable. Lines
// before an ending line do not count.
func (t trouble) count(lines []node.KernelLine, h hca.HCA, at float64) (all, within, now int, last string) {
	lasts := false
	for _, line := range lines {
		switch recently := at-line.At < recent; {
		case !isAbout(line.Text, h):
		case !t.lines.MatchString(line.Text):
			lasts = false
			if t.least == 1 {
				now = 0
			}
		case !lasts: // otherwise, a port without a cable was turned on again
			all++
			last = line.Text
			lasts = t.least > 1
			if recently {
				within++
			}
			if recently || t.least == 1 && t.ends != nil && !h.Active() {
				now++
			}
		}
	}
	return all, within, now, last
}

// linkUp matches the log lines about a link that comes up, and plugged those about a transceiver that is plugged or
// unplugged.
var (
	linkUp  = regexp.MustCompile(`(?i)\blink (is )?up\b|link becomes ready`)
	plugged = regexp.MustCompile(`(?i)cable (un)?plugged`)
)

// troubles are in order of precedence: a line counts for the first match. A missing transceiver ("Cable unplugged") is
// not a trouble.
var troubles = []trouble{
	{regexp.MustCompile(`(?i)firmware internal error|health compromised|irisc not responding|unrecoverable hardware ` +
		`error|fatal error \d+ detected|internal error detected|timeout\. Will cause a leak of a command resource|` +
		`firmware fatal (condition|reset)`), // the last is Broadcom's
		"The firmware failed", 1, nil, func(device string, _ hca.Tools) string {
			return "Drain the node, install the card's latest firmware, and restart the node. The restart stops all pods on " +
				"the node. To list the RDMA containers, run \"rdma-spec status\". If the firmware fails again, replace the " +
				"card. To see the card's messages, run: dmesg | grep " + device
		}},
	{regexp.MustCompile(`(?i)cable error|module .*(high temperature|bad or shorted|power budget exceeded)`),
		"The cable or transceiver has a problem", 1, plugged,
		func(_ string, t hca.Tools) string { return ofCable + t.Module }},
	{regexp.MustCompile(`(?i)high temperature|over.?temperature|temperature (warning|critical)`),
		"The HCA is too hot", 1, nil, func(device string, t hca.Tools) string {
			return "Check the airflow and the fans. To see the temperature, run: " + cmp.Or(t.Heat, "dmesg | grep "+device)
		}},
	{regexp.MustCompile(`CREATE_MKEY.*(limits exceeded|no resources)`),
		"The HCA cannot register more memory regions", 1, nil, func(device string, _ hca.Tools) string {
			return "Run fewer processes that use the HCA, or register fewer memory regions in each process. To register fewer " +
				"regions, use huge pages, and remove UCX_RCACHE_ENABLE=n. To count the regions of each process, run " +
				"\"rdma resource show mr\". To see the card's messages, run: dmesg | grep " + device
		}},
	{regexp.MustCompile(`PCIe Bus Error: severity=Uncorrect|AER: Uncorrect`),
		"The HCA has uncorrected PCIe errors", 1, nil, func(device string, _ hca.Tools) string {
			return "Reseat the card, or try another slot. To check the result, run: lspci -vvs " + device
		}},
	{regexp.MustCompile(`(?i)\blink (is )?down\b`), "The port keeps losing its link", 3, linkUp,
		func(_ string, t hca.Tools) string { return ofCable + t.Errors }},
}

// known are the drivers whose messages troubles matches. The error messages of other drivers are unknown.
var known = []string{"mlx4_core", "mlx5_core", "mlx5_core.sf", "bnxt_en", "bnxt_re"}

// unknownDrivers finds the drivers of cards that are not in known.
func unknownDrivers(hcas []hca.HCA) (found []doctor.Finding) {
	of := map[string][]string{}
	for _, h := range hcas {
		if h.PCI != "" && h.Driver != "" && !slices.Contains(known, h.Driver) {
			of[h.Driver] = append(of[h.Driver], h.Name)
		}
	}
	for _, driver := range slices.Sorted(maps.Keys(of)) {
		found = append(found, doctor.Unsure("driver "+driver, fmt.Sprintf("The doctor does not recognize the driver's "+
			"error messages about %s. To read the messages, run: dmesg | grep %s", strings.Join(of[driver], ", "), driver)))
	}
	return found
}

// isAbout reports whether a line names an HCA's PCI device or, if the line names no PCI device, the HCA or one of the
// HCA's netdevs. Netdevs can be renamed: a netdev's current name might have been the name of another netdev.
func isAbout(line string, h hca.HCA) bool {
	names := []string{h.Name}
	for _, p := range h.Ports {
		names = append(names, p.Netdevs...)
	}
	named := false
	another := false
	for word := range strings.FieldsSeq(line) {
		word = strings.TrimRight(word, ":,;")
		switch {
		case word == "":
		case word == h.PCI:
			return true
		case pciForm.MatchString(word):
			another = true
		case slices.Contains(names, word):
			named = true
		}
	}
	return named && !another
}

// hcaErrors finds HCAs whose drivers log trouble. Past trouble has the status ok.
func hcaErrors(v *doctor.View) []doctor.Finding {
	log, failed := v.KernelLog()
	of := make([][]node.KernelLine, len(troubles))
	for _, line := range log.Lines {
		i := slices.IndexFunc(troubles, func(t trouble) bool {
			return t.lines.MatchString(line.Text) || t.ends != nil && t.ends.MatchString(line.Text)
		})
		if i >= 0 {
			of[i] = append(of[i], line)
		}
	}
	ofOne := func(h hca.HCA) (found []doctor.Finding) {
		counts := doctor.Attribute(v, pciDevices+h.PCI+"/aer_dev_fatal") // empty for an HCA without a card
		if _, count, _ := strings.Cut(counts, "TOTAL_ERR_FATAL "); count != "" && count != "0" {
			found = append(found, doctor.Fault(object(h), "Number of fatal PCIe errors since the node started: "+count+".",
				"Reseat the card, or try another slot. To check the result, run: lspci -vvs "+h.PCI))
		}
		port := hca.Port{Number: 1}
		if len(h.Ports) > 0 {
			port = h.Ports[0]
		}
		for i, t := range troubles {
			if t.least > 1 && h.Function != hca.FunctionPhysical { // consecutive pods turn the port on and off
				continue
			}
			all, within, now, last := t.count(of[i], h, log.Now)
			f := doctor.Fault(object(h), fmt.Sprintf("%s (%s in the last hour, %s in the whole log). Latest "+
				"message: %s", t.what, times(within), times(all), last), t.fix(cmp.Or(h.PCI, h.Name), h.Tools(port)))
			if now < t.least {
				f.Status = doctor.OK
				f.Fix = ""
			}
			if all > 0 {
				found = append(found, f)
			}
		}
		return found
	}
	found := ofHCAs(v, func(hcas []hca.HCA) []doctor.Finding {
		return append(doctor.Each(hcas, ofOne), unknownDrivers(hcas)...)
	})
	if failed != nil {
		found = append(found, doctor.Unsure("", fmt.Sprintf("The kernel log cannot be read: %v.", failed)))
	}
	return found
}

var (
	// refusedModule matches a module that was built for another version of a symbol, or for a symbol that no module
	// provides.
	refusedModule = regexp.MustCompile(
		`(?:^|\s)([a-z0-9_]+): (disagrees about version of|Unknown) symbol ([A-Za-z0-9_]+)`)
	// ofRDMA matches the names of RDMA modules and of their symbols.
	ofRDMA = regexp.MustCompile(`\b(ib|iw|mlx[45]?)_|rdma|peermem|\b(efa|bnxt_re|hfi1|siw)\b`)
)

// refusedModules finds RDMA modules that the kernel refused and that are still not loaded.
func refusedModules(v *doctor.View, log node.KernelLog) (found []doctor.Finding) {
	seen := map[string]bool{}
	for _, line := range log.Lines {
		refused := refusedModule.FindStringSubmatch(line.Text)
		if refused == nil || seen[refused[1]] || !ofRDMA.MatchString(refused[1]+" "+refused[3]) {
			continue
		}
		seen[refused[1]] = true
		if loaded, err := v.Exists("sys/module/" + refused[1]); loaded || err != nil {
			continue
		}
		fix := "Install OFED or DOCA, reinstall the module's package, and then run: modprobe " + refused[1]
		if refused[1] == "nvidia_peermem" {
			if _, serves := dmaBUF(v); serves {
				continue // DMA-BUF makes the module unnecessary
			}
			fix = "If neither OFED nor DOCA is installed, install one of them. Then rebuild the GPU driver (with the " +
				"GPU Operator, delete the node's driver pod). Finally, run: modprobe nvidia_peermem"
		}
		text := "the module was built for a different version of " + refused[3] + "."
		if refused[2] == "Unknown" {
			text = "no loaded module provides " + refused[3] + "."
			if strings.Contains(refused[3], "peer_memory") {
				text += " OFED and DOCA add this symbol to ib_core. The in-tree ib_core of most kernels lacks the symbol."
			}
		}
		found = append(found, doctor.Fault("module "+refused[1], "The kernel refused to load the module because "+text, fix))
	}
	return found
}

// denials matches denied access to devices, and CAP_IPC_LOCK denied to containers. Other programs work without the
// capability. notDenied matches access that SELinux allows and logs, and access denied to the node's own programs.
var (
	denials = regexp.MustCompile(`(?i)(avc:\s+denied|apparmor="DENIED").*(infiniband|uverbs|rdma_cm)|` +
		`apparmor="DENIED".*ipc_lock|avc:\s+denied.*ipc_lock.*scontext=\S*(container|svirt)`)
	notDenied = regexp.MustCompile(`permissive=1|profile="(/|snap\.)`)
)

// Denials finds recent denials by a security module. Older denials do not count, so the finding disappears after its
// cause.
func Denials(_ *doctor.View, log node.KernelLog) []doctor.Finding {
	last := ""
	count := 0
	for _, line := range log.Lines {
		if log.Now-line.At < recent && denials.MatchString(line.Text) && !notDenied.MatchString(line.Text) {
			last = line.Text
			count++
		}
	}
	if count == 0 {
		return nil
	}
	boolean := "container_use_devices"
	gives := "devices"
	if strings.Contains(last, "ipc_lock") {
		boolean = "virt_sandbox_use_all_caps"
		gives = "capabilities"
	}
	fix := fmt.Sprintf("If the container should have access, run \"setsebool -P %s on\". "+
		"This setting lets all containers on the node use the %s that the runtime gives them. To show the current "+
		"value, run \"getsebool %[1]s\".",
		boolean, gives)
	if strings.Contains(strings.ToLower(last), "apparmor") {
		fix = "Set the container's securityContext.appArmorProfile.type to Unconfined, or change the profile to allow the " +
			"access."
	}
	const most = 200
	return []doctor.Finding{doctor.Fault("", fmt.Sprintf("%s; latest: %s",
		cli.Counted(count, "denial", "denials"), last[:min(len(last), most)]), fix)}
}
