// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package hardware

import (
	"fmt"
	"path"
	"strings"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
)

// netnsChecks are about HCAs and network namespaces.
func netnsChecks() []doctor.Check {
	return []doctor.Check{{
		ID: "netns-mode", Family: "netns",
		Title: "The RDMA subsystem's network namespace mode is the one that the node's plugins need.",
		Why: "In exclusive mode, only pods given an HCA by rdma-cni or a DRA driver can use it. In shared mode, rdma-cni " +
			"cannot give one to a pod.",
		Look: netnsMode,
	}, {
		ID: "hca-present", Family: "netns", Title: "Each RDMA function that has a driver shows an HCA.",
		Why: "The HCA is lost to the node until its driver is bound again.",
		Reads: []string{
			auxDevices + "*", auxDevices + "*/driver", auxDevices + "*/infiniband/*", auxDevices + "*/infiniband_verbs/*",
			pciDevices + "*/driver", pciDevices + "*/infiniband/*", pciDevices + "*/infiniband_verbs/*", pciDevices + "*/physfn",
			pciDevices + "*/" + bonding, "sys/bus/pci/drivers/mlx5_core/*",
			"sys/bus/pci/drivers/efa/*", "sys/bus/pci/drivers/hfi1/*",
		},
		Needs: []string{"hca-driver"}, Look: lostHCAs,
	}}
}

func netnsMode(v *doctor.View) []doctor.Finding {
	mode, err := v.Read("sys/module/ib_core/parameters/netns_mode")
	if err != nil {
		return doctor.Inapplicable("The module ib_core is not loaded.")
	}
	cni, err := v.RDMACNI()
	if err != nil {
		return []doctor.Finding{doctor.Unsure("", "Whether rdma-cni is configured is unknown: "+err.Error()+".")}
	}
	switch exclusive := strings.HasPrefix(mode, "N"); {
	case exclusive && !cni.Installed && cni.Configured == "":
		return []doctor.Finding{doctor.Unsure("",
			"It is exclusive, and rdma-cni is neither a program in /opt/cni/bin, /var/lib/cni/bin, or K3s' data, nor named "+
				"in a network configuration of CNI. It is right if something else moves HCAs into pods, as DRANET does. It is "+
				"wrong if pods share HCAs: then run \"rdma system set netns shared\", write \"options ib_core netns_mode=1\" to "+
				"/etc/modprobe.d/rdma-spec-netns.conf, and restart the node if the first command fails.")}
	case !exclusive && cni.Configured != "":
		return []doctor.Finding{doctor.Fault("", "It is shared, and "+cni.Configured+
			" names rdma-cni, which needs it to be exclusive.",
			"echo 'options ib_core netns_mode=0' > /etc/modprobe.d/rdma-spec-netns.conf && rdma system set netns exclusive || "+
				"echo 'restart the node'").WithCare("pods that share HCAs lose them", "rdma-spec status")}
	case exclusive:
		return []doctor.Finding{doctor.Told("",
			"It is exclusive, as rdma-cni needs it: only pods that rdma-cni gives an HCA can use one.")}
	}
	return nil
}

// bonding is there where a card's second port is a part of an HCA of both: mlx5_bond_0.
const bonding = "net/*/bonding_slave"

// lostHCAs finds RDMA functions with a driver and without an HCA.
func lostHCAs(v *doctor.View) []doctor.Finding {
	functions, err := v.Glob(auxDevices + "*")
	if err != nil {
		return []doctor.Finding{doctor.Unsure("", fmt.Sprintf("The devices cannot be listed: %v.", err))}
	}
	var found []doctor.Finding
	withRDMA := map[string]bool{}
	for _, at := range functions {
		if !auxFunction.MatchString(path.Base(at)) {
			continue
		}
		to, err := v.Readlink(at)
		if err != nil {
			continue
		}
		parent := path.Base(path.Dir(to))
		withRDMA[parent] = true
		bus := auxDevices
		if pciForm.MatchString(parent) {
			bus = pciDevices
		}
		if bound, err := v.Exists(at + "/driver"); bound && err == nil {
			found = append(found, hcaBelow(v, bus+parent, rebind("auxiliary", path.Base(at)))...)
		}
	}
	for _, driver := range []string{"efa", "hfi1", "mlx5_core"} {
		cards, _ := v.Glob("sys/bus/pci/drivers/" + driver + "/*")
		for _, card := range cards {
			address := path.Base(card)
			virtual, _ := v.Exists(pciDevices + address + "/physfn")
			switch {
			case !pciForm.MatchString(address) || withRDMA[address]:
			case driver != "mlx5_core":
				found = append(found, hcaBelow(v, pciDevices+address, rebind("pci", address))...)
			case !virtual && !v.Any(pciDevices+address+"/infiniband/*") && !v.Any(pciDevices+address+"/"+bonding):
				found = append(found, doctor.Told("PCI device "+address,
					"It has no RDMA: a device plugin's selector must leave it out."))
			}
		}
	}
	return found
}

// hcaBelow finds a device without an HCA below it. sysfs hides HCAs of other network namespaces, but not their verbs
// devices.
func hcaBelow(v *doctor.View, at, cure string) []doctor.Finding {
	on := "PCI device " + path.Base(at)
	switch {
	case v.Any(at + "/infiniband/*"):
		return nil
	case v.Any(at + "/infiniband_verbs/*"):
		return []doctor.Finding{doctor.Told(on, "Its HCA is in another network namespace.")}
	}
	return []doctor.Finding{doctor.Fault(on, "It has a driver for RDMA, and no HCA.", cure).Command()}
}
