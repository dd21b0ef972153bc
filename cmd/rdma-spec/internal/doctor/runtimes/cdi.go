// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package runtimes

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/cdi"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/process"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/runtime"
)

// CDIChecks are the checks of CDI files.
func cdiChecks() []doctor.Check {
	return []doctor.Check{{
		ID: "cdi-files", Family: "cdi", Title: "The CDI files for HCAs match the HCAs.",
		Impact: "Containers with a CDI device from these files do not start, or they get a different HCA.",
		Look:   withCDI(cdiFiles),
	}, {
		ID: "cdi-on", Family: "cdi", Title: "CDI is on in runtimes that use CDI files for HCAs.",
		Impact: "Containers with a CDI device do not start, or they start without the HCA.",
		Needs:  []string{"runtime-config"}, Look: withCDI(cdiOn),
	}}
}

// withCDI looks at the CDI files of HCAs, ours and those of device plugins. Those of other devices are their makers'
// work.
func withCDI(look func(*doctor.View, cdi.Files, []cdi.Found) []doctor.Finding) doctor.Look {
	return func(v *doctor.View) []doctor.Finding {
		answer, err := v.CDI()
		if err != nil {
			return []doctor.Finding{doctor.Unsure("", "The CDI files cannot be listed: "+err.Error()+".")}
		}
		files := slices.DeleteFunc(slices.Clone(answer.Files), func(f cdi.Found) bool { return !f.RDMA() })
		if len(files) == 0 {
			return doctor.Inapplicable("The node has no CDI file for HCAs.")
		}
		return look(v, answer, files)
	}
}

func cdiFiles(_ *doctor.View, _ cdi.Files, files []cdi.Found) (found []doctor.Finding) {
	for _, f := range files {
		problems := []string{f.Problem} // of all of it, else of its devices
		if f.Problem == "" {
			problems = nil
			for _, d := range f.Devices {
				if d.Problem != "" {
					problems = append(problems, strings.TrimPrefix(d.Name, cdi.Kind+"=")+": "+d.Problem)
				}
			}
		}
		switch {
		case len(problems) > 0 && !f.Ours():
			found = append(found, doctor.Fault("CDI file "+f.Path, doctor.Sentence(problems),
				"Delete the pod of the device plugin that wrote the file. The device plugin rewrites the file when it restarts"))
		case len(problems) > 0:
			found = append(found, doctor.Fault("CDI file "+f.Path, doctor.Sentence(problems), rewriteCDI(f)).Command())
		}
	}
	return found
}

// rewriteCDI is the command that writes a file again: with the options that it was made with, where it can be read.
func rewriteCDI(f cdi.Found) string {
	switch {
	case f.Problem == "":
		return fmt.Sprintf("$(sed -n 's/^# Made with: //p' %[1]s) --to %[1]s", f.Path)
	case f.Path == "/etc/cdi/rdma.yaml":
		return "rdma-spec configure cdi"
	}
	return "rdma-spec cdi generate --to " + f.Path
}

// cdiOn looks at the runtimes that can use the CDI files of HCAs. It is a fault where nothing else can be meant to use
// them: Podman always has CDI, and Docker's containers are not the kubelet's.
func cdiOn(v *doctor.View, answer cdi.Files, files []cdi.Found) []doctor.Finding {
	kubelet, err := v.Kubelet()
	pods := err == nil && kubelet.PID > 0
	others := slices.ContainsFunc(files, func(f cdi.Found) bool { return !f.Ours() }) // which are for pods alone
	runtimes, _ := v.Runtimes()                                                       // runtime-config says so
	var found []doctor.Finding
	tell := func(fault bool, object, text, fix string) {
		switch {
		case text == "":
		case fault:
			found = append(found, doctor.Fault(object, text, fix))
		default:
			found = append(found, doctor.Unsure(object, text+" If its containers use CDI devices for HCAs, "+
				strings.ToLower(fix[:1])+fix[1:]))
		}
	}
	for _, r := range runtimes.ForPods() {
		if r.Name == runtime.NameContainerd && r.Known {
			text, fix := lacksCDI(r, files)
			tell(pods && (others || !answer.Podman && answer.Docker == nil), runtimeObject(r), text, fix)
		}
	}
	if answer.Docker != nil {
		text, fix := dockerLacks(*answer.Docker, files)
		tell(!pods && !answer.Podman, "runtime docker", text, fix)
	}
	return found
}

// lacksCDI returns what keeps a containerd from the files, and its fix; nothing where nothing does.
func lacksCDI(r runtime.Runtime, files []cdi.Found) (text, fix string) {
	if r.CDIOff {
		return "CDI is off: enable_cdi = false.", CDIOn(r)
	}
	return unreadDir(files, r.CDIDirs), setCRI(r, `cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]`)
}

// CDIOn is how CDI is turned on in a containerd.
func CDIOn(r runtime.Runtime) string { return setCRI(r, "enable_cdi = true") }

// setCRI is how a key of a containerd's CRI plugin is set.
func setCRI(r runtime.Runtime, what string) string {
	section := "io.containerd.cri.v1.runtime"
	if olderThan(r.Version, "2.0") {
		section = "io.containerd.grpc.v1.cri"
	}
	return fmt.Sprintf("Set %s in [plugins.'%s'] of %s, and then run: %s", what, section, r.Config, restartRuntime(r))
}

// dockerLacks returns what keeps Docker from the files, and its fix; nothing where nothing does.
func dockerLacks(d cdi.Docker, files []cdi.Found) (text, fix string) {
	const file = "/etc/docker/daemon.json"
	const restart = ", and then, when it is safe to stop Docker's containers, run: systemctl restart docker"
	switch {
	case d.Error != "":
		return fmt.Sprintf("%s cannot be read: %s.", file, d.Error), "Correct " + file + restart
	case olderThan(d.Version, "25.0"):
		return fmt.Sprintf("Docker %s does not support CDI.", d.Version), "Install Docker 28.2 or later"
	case d.CDI != nil && !*d.CDI, d.CDI == nil && olderThan(d.Version, "28.2"):
		return "CDI is off.", `Set "features": {"cdi": true} in ` + file + restart
	}
	return unreadDir(files, d.Dirs), `Set "cdi-spec-dirs": ["/etc/cdi", "/var/run/cdi"] in ` + file + restart
}

// unreadDir returns what is wrong where a runtime that looks into these directories does not find a file. None are the
// default ones.
func unreadDir(files []cdi.Found, dirs []string) string {
	read := func(dir string) bool {
		return slices.ContainsFunc(dirs, func(f string) bool { return process.SamePath(f, dir) })
	}
	for _, f := range files {
		if len(dirs) > 0 && !read(path.Dir(f.Path)) {
			return fmt.Sprintf("It reads CDI files in %s, so it does not find %s.", strings.Join(dirs, ", "), f.Path)
		}
	}
	return ""
}
