// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"testing"
)

// A configuration that cannot be read hits nobody whom no configuration would make an RDMA container.
func TestWithoutAConfiguration(t *testing.T) {
	p := Missing(errors.New("/etc/rdma-spec/config.yaml: memlok: unknown key"))
	own := func(value string) map[string]string {
		return map[string]string{AnnotationKey + "/container.app": value}
	}
	verbs := []Device{heldVerbs(0)}
	node := testNodes(t)["V100"]
	for name, test := range map[string]struct {
		container Container
		refused   Cause
	}{
		"plain":                       {Container{}, ""},
		"opted out":                   {Container{Annotations: own("false")}, ""},
		"opted out, with a device":    {Container{Annotations: podAnnotation("false"), Devices: verbs}, ""},
		"handler that is skipped":     {Container{RuntimeHandler: "kata-qemu", Annotations: podAnnotation("true")}, ""},
		"its device is skipped too":   {Container{RuntimeHandler: "runsc-x", Devices: verbs}, ""},
		"pod-wide less":               {Container{Annotations: podAnnotation("{memlock: 16Gi}")}, ""},
		"less for this container":     {Container{Annotations: own("{memlock: 16Gi}")}, CauseNoPolicy},
		"pod-wide less with a device": {Container{Annotations: podAnnotation("{memlock: 16Gi}"), Devices: verbs}, CauseNoPolicy},
		"pod-wide more":               {Container{Annotations: podAnnotation("true")}, CauseNoPolicy},
		"device":                      {Container{Devices: verbs}, CauseNoPolicy},
		"unreadable":                  {Container{Annotations: podAnnotation("yes please")}, CauseUnreadable},
		"privileged":                  {Container{Devices: verbs, AllDevices: true}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			test.container.Name = "app"
			d := p.Decide(test.container, node)
			if d.Grant != nil || (d.Refusal == nil) != (test.refused == "") ||
				d.Refusal != nil && d.Refusal.Cause != test.refused {
				t.Errorf("decided %+v, want refused for %q", d, test.refused)
			}
		})
	}
}
