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

// cdiChecks are the checks of CDI files.
func cdiChecks() []doctor.Check {
	return []doctor.Check{{
		ID: "cdi-files", Family: "cdi", Title: "The CDI files for HCAs match the HCAs.",
		Impact: "Containers that request a CDI device from these files do not start, or receive a different HCA.",
		Look:   withCDI(cdiFiles),
	}, {
		ID: "cdi-on", Family: "cdi", Title: "CDI is enabled in runtimes that use CDI files for HCAs.",
		Impact: "Containers that request a CDI device do not start, or start without the HCA.",
		Needs:  []string{"runtime-config"}, Look: withCDI(cdiOn),
	}}
}

// withCDI runs a check of the CDI files for HCAs that rdma-spec or device plugins wrote. CDI files for other devices
// are out of scope.
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
		problems := []string{f.Problem} // of the whole file, or of its devices
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
				"Delete the pod of the device plugin that wrote the file. The new pod rewrites the file at startup"))
		case len(problems) > 0:
			found = append(found, doctor.Fault("CDI file "+f.Path, doctor.Sentence(problems), rewriteCDI(f)).Command())
		}
	}
	return found
}

// rewriteCDI returns the command that rewrites a file, with the original options if the file is readable.
func rewriteCDI(f cdi.Found) string {
	switch {
	case f.Problem == "":
		return fmt.Sprintf("$(sed -n 's/^# Made with: //p' %[1]s) --to %[1]s", f.Path)
	case f.Path == "/etc/cdi/rdma.yaml":
		return "rdma-spec configure cdi"
	}
	return "rdma-spec cdi generate --to " + f.Path
}

// cdiOn checks the runtimes that can use the CDI files for HCAs. CDI that is off is a fault only if no other runtime
// can be the intended user of the files: CDI is always on in Podman, and Docker's containers are not the kubelet's.
func cdiOn(v *doctor.View, answer cdi.Files, files []cdi.Found) []doctor.Finding {
	kubelet, err := v.Kubelet()
	pods := err == nil && kubelet.PID > 0
	others := slices.ContainsFunc(files, func(f cdi.Found) bool { return !f.Ours() }) // these files are only for pods
	runtimes, _ := v.Runtimes()                                                       // runtime-config reports the error
	var found []doctor.Finding
	tell := func(fault bool, object, text, fix string) {
		switch {
		case text == "":
		case fault:
			found = append(found, doctor.Fault(object, text, fix))
		default:
			found = append(found, doctor.Unsure(object, text+" If the runtime's containers use CDI devices for HCAs, "+
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

// lacksCDI returns the reason why a containerd does not use the files, and its fix. It returns "" without a reason.
func lacksCDI(r runtime.Runtime, files []cdi.Found) (text, fix string) {
	if r.CDIOff {
		return "CDI is off: enable_cdi = false.", CDIOn(r)
	}
	return unreadDir(files, r.CDIDirs), setCRI(r, `cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]`)
}

// CDIOn returns the fix that turns CDI on in a containerd.
func CDIOn(r runtime.Runtime) string { return setCRI(r, "enable_cdi = true") }

// setCRI returns the fix that sets a key of a containerd's CRI plugin.
func setCRI(r runtime.Runtime, what string) string {
	section := "io.containerd.cri.v1.runtime"
	if olderThan(r.Version, "2.0") {
		section = "io.containerd.grpc.v1.cri"
	}
	return fmt.Sprintf("Set %s in the [plugins.'%s'] section of %s, and then run: %s", what, section, r.Config,
		restartRuntime(r))
}

// dockerLacks returns the reason why Docker does not use the files, and its fix. It returns "" without a reason.
func dockerLacks(d cdi.Docker, files []cdi.Found) (text, fix string) {
	const file = "/etc/docker/daemon.json"
	const restart = ". Unless live-restore is on, a restart of Docker stops all of its containers. When these " +
		"containers can be stopped, run: systemctl restart docker"
	switch {
	case d.Error != "":
		return fmt.Sprintf("%s cannot be read: %s.", file, d.Error), "Correct " + file + restart
	case olderThan(d.Version, "25.0"):
		return fmt.Sprintf("Docker %s does not support CDI.", d.Version), "Install Docker 28.2 or later"
	case d.CDI != nil && !*d.CDI, d.CDI == nil && olderThan(d.Version, "28.2"):
		return "CDI is off.", `Add "features": {"cdi": true} to ` + file + restart
	}
	return unreadDir(files, d.Dirs), `Set "cdi-spec-dirs": ["/etc/cdi", "/var/run/cdi"] in ` + file + restart
}

// unreadDir returns the problem of a runtime that does not find a file in its CDI directories. If the list of
// directories is empty, the runtime reads the default directories.
func unreadDir(files []cdi.Found, dirs []string) string {
	read := func(dir string) bool {
		return slices.ContainsFunc(dirs, func(f string) bool { return process.SamePath(f, dir) })
	}
	for _, f := range files {
		if len(dirs) > 0 && !read(path.Dir(f.Path)) {
			return fmt.Sprintf("The runtime reads CDI files only in %s, so it does not find %s.",
				strings.Join(dirs, ", "), f.Path)
		}
	}
	return ""
}
