// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package hardware

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node"
	"github.com/rdma-spec/rdma-spec/spec/hca"
)

// netnsChecks returns the checks of HCAs in network namespaces.
func netnsChecks() []doctor.Check {
	return []doctor.Check{{
		ID: "netns-mode", Family: "netns",
		Title: "The RDMA subsystem is in the network namespace mode that the node's plugins need.",
		Impact: "In exclusive mode, a pod can use an HCA only if rdma-cni or a DRA driver moves the HCA into the pod. In " +
			"shared mode, rdma-cni cannot move HCAs.",
		Look: netnsMode,
	}, {
		ID: "hca-present", Family: "netns",
		Title: "Each RDMA function with a driver has its HCA, and each RoCE port has its interface, on the node or in a " +
			"container.",
		Impact: "Until the driver is rebound, the node cannot use the HCA or its interface.",
		Reads: slices.Concat(doctor.GIDReads, []string{
			auxDevices + "*", auxDevices + "*/driver", auxDevices + "*/infiniband/*", auxDevices + "*/infiniband_verbs/*",
			pciDevices + "*", pciDevices + "*/driver", pciDevices + "*/infiniband/*", pciDevices + "*/infiniband_verbs/*",
			pciDevices + "*/physfn", pciDevices + "*/" + bonding, "sys/module/*",
		}),
		Needs: []string{"hca-driver"}, Look: lostHCAs,
	}}
}

func netnsMode(v *doctor.View) []doctor.Finding {
	mode, err := v.Read("sys/module/ib_core/parameters/netns_mode")
	if err != nil {
		return doctor.Inapplicable("The ib_core module is not loaded.")
	}
	cni, err := v.RDMACNI()
	if err != nil {
		return []doctor.Finding{doctor.Unsure("", "It is unknown whether rdma-cni is configured: "+err.Error()+".")}
	}
	switch exclusive := strings.HasPrefix(mode, "N"); {
	case exclusive && !cni.Installed && cni.Configured == "":
		return exclusiveWithoutCNI(v)
	case !exclusive && cni.Configured != "":
		return []doctor.Finding{doctor.Fault("", "The network namespace mode is shared, but "+cni.Configured+
			" names rdma-cni, which needs exclusive mode.",
			"echo 'options ib_core netns_mode=0' > /etc/modprobe.d/rdma-spec-netns.conf && rdma system set netns exclusive || "+
				"echo 'restart the node'").Disruptive("Pods that share HCAs lose access to them.", "rdma-spec status")}
	case exclusive:
		return []doctor.Finding{doctor.Told("",
			"The network namespace mode is exclusive, as rdma-cni requires. A pod can use an HCA only if rdma-cni moves the "+
				"HCA into the pod.")}
	}
	return nil
}

// exclusiveWithoutCNI judges exclusive mode on a node without rdma-cni. The containers show whether the mode
// is correct.
func exclusiveWithoutCNI(v *doctor.View) []doctor.Finding {
	inventory, err := v.HCAs()
	if err == nil && len(inventory.Elsewhere) > 0 {
		return []doctor.Finding{doctor.Told("", "The network namespace mode is exclusive, and HCAs were moved into other "+
			"network namespaces. A pod can use an HCA only if a component such as dranet moves the HCA into the pod.")}
	}
	containers, err := v.Containers()
	own := func(c node.Container) bool { return c.OwnNetwork || !c.Known }
	if err == nil && len(containers.Containers) > 0 && !slices.ContainsFunc(containers.Containers, own) {
		return []doctor.Finding{doctor.Told("", "The network namespace mode is exclusive. All RDMA containers use the "+
			"node's network namespace, which contains the HCAs.")}
	}
	return []doctor.Finding{doctor.Unsure("", "The network namespace mode is exclusive, but rdma-cni is neither named in "+
		"a CNI network configuration nor installed in /opt/cni/bin, /var/lib/cni/bin, or K3s's data directory. "+
		"Exclusive mode is correct if pods with HCAs use the node's network namespace, or if another component, such as "+
		"dranet, moves HCAs into the pods. In exclusive mode, pods with their own network namespace cannot share HCAs.")}
}

// bonding exists if a card's second port is part of an HCA of both ports, such as mlx5_bond_0.
const bonding = "net/*/bonding_slave"

// lostHCAs finds RDMA functions that have a driver but no HCA, and RoCE ports without an interface.
func lostHCAs(v *doctor.View) []doctor.Finding {
	functions, err := v.Glob(auxDevices + "*")
	if err != nil {
		return []doctor.Finding{doctor.Unsure("", fmt.Sprintf("The devices cannot be listed: %v.", err))}
	}
	var found []doctor.Finding
	withRDMA := map[string]bool{}
	drivers := map[string]bool{}
	for _, at := range functions {
		form := auxFunction.FindStringSubmatch(path.Base(at))
		to, err := v.Readlink(at)
		if form == nil || err != nil {
			continue
		}
		parent := path.Base(path.Dir(to))
		withRDMA[parent] = true
		drivers[form[1]] = true
		bus := auxDevices
		if pciForm.MatchString(parent) {
			bus = pciDevices
		}
		if bound, err := v.Exists(at + "/driver"); bound && err == nil {
			found = append(found, hcaBelow(v, bus+parent, rebound("auxiliary", path.Base(at)))...)
		}
	}
	cards, _ := v.Glob(pciDevices + "*") // as of functions, which were listed
	for _, at := range cards {
		link, _ := v.Readlink(at + "/driver")
		driver := path.Base(link)
		card := path.Base(at)
		switch {
		case withRDMA[card]:
		case driver == "efa" || driver == "hfi1":
			found = append(found, hcaBelow(v, at, rebound("pci", card))...)
		case driver == "mlx4_core" || driver == "mlx5_core":
			found = append(found, withoutFunction(v, at, driver, drivers[driver])...)
		}
	}
	return append(found, lostInterfaces(v)...)
}

// withoutFunction judges a card without an RDMA function. Before Linux 5.11, and for mlx4 before Linux 6.7, drivers
// create an HCA without an RDMA function.
func withoutFunction(v *doctor.View, at, driver string, makes bool) []doctor.Finding {
	on := "PCI device " + path.Base(at)
	module := auxModules[driver]
	loaded, _ := v.Exists("sys/module/" + module)
	virtual, _ := v.Exists(at + "/physfn")
	switch {
	case v.Any(at+"/infiniband/*") || v.Any(at+"/"+bonding):
		return nil
	case !makes && v.Any(at+"/infiniband_verbs/*"):
		h := hca.HCA{PCI: path.Base(at), Function: hca.FunctionPhysical}
		if virtual {
			h.Function = hca.FunctionVirtual
		}
		return hcaBelow(v, at, func(f doctor.Finding) doctor.Finding { return reload(h, f) })
	case !makes && loaded:
		return []doctor.Finding{doctor.Unsure(on, "The device has an RDMA driver, but no HCA. The firmware might be "+
			"too old for "+module+", or RDMA might be turned off in the firmware. Check the kernel log.")}
	case !virtual && driver == "mlx5_core":
		return []doctor.Finding{doctor.Told(on,
			"The device does not support RDMA. Exclude it from the device plugin's selector.")}
	}
	return nil
}

// hcaBelow finds a device without an HCA below it. sysfs hides the HCAs of other network namespaces, but not their
// verbs devices. The container that has a verbs device shows whether the HCA is in the correct network namespace.
func hcaBelow(v *doctor.View, at string, fixed func(doctor.Finding) doctor.Finding) []doctor.Finding {
	on := "PCI device " + path.Base(at)
	devices, _ := v.Glob(at + "/infiniband_verbs/*") // what cannot be listed is not there
	switch {
	case v.Any(at + "/infiniband/*"):
		return nil
	case len(devices) == 0:
		return []doctor.Finding{fixed(doctor.Fault(on, "The device has an RDMA driver, but no HCA.", ""))}
	}
	var number hca.Number
	_, err := fmt.Sscanf(doctor.Attribute(v, "sys/class/infiniband_verbs/"+path.Base(devices[0])+"/dev"), "%d:%d",
		&number.Major, &number.Minor)
	var holders node.Holders
	if err == nil {
		holders, err = v.HoldersOf(number)
	}
	return elsewhere(on, "HCA", holders, err, fixed)
}

// rebound adds the command that rebinds a device to its driver to a finding. Use it only for devices that support only
// RDMA: if a card's main driver is rebound, the card's network interfaces disappear.
func rebound(bus, device string) func(doctor.Finding) doctor.Finding {
	return func(f doctor.Finding) doctor.Finding {
		f.Fix = rebindCommand(bus, device)
		return f.Command()
	}
}

// lostInterfaces finds ACTIVE RoCE ports whose interface is in another network namespace. If no card's interface is
// visible, the doctor does not see the node's own network namespace.
func lostInterfaces(v *doctor.View) (found []doctor.Finding) {
	inventory, err := v.HCAs()
	if err != nil || !v.Any(classNet+"*/device") {
		return nil // hca-answers reports the error
	}
	for _, h := range inventory.HCAs {
		for _, p := range h.Ports {
			if p.LinkLayer != "Ethernet" || h.PCI == "" || !p.Active() || len(p.Netdevs) > 0 || h.Purpose() != hca.PurposeRDMA ||
				h.NodeType != "CA" {
				continue
			}
			gids, err := v.GIDs(h.Name, p.Number)
			if err == nil && len(gids) == 0 {
				err = errors.New("the driver does not list the port's GIDs")
			}
			var holders node.Holders
			if err == nil {
				holders, err = v.HoldersOfInterface(gids)
			}
			found = append(found, elsewhere(portObject(h, p), "interface", holders, err,
				func(f doctor.Finding) doctor.Finding { return reload(h, f) })...)
		}
	}
	return found
}

// elsewhere judges an HCA, or the interface of a port, that is in another network namespace. what is "HCA" or
// "interface".
func elsewhere(on, what string, in node.Holders, unknown error,
	fixed func(doctor.Finding) doctor.Finding) []doctor.Finding {
	where := "The " + what + " is in another network namespace"
	switch {
	case len(in.Own) > 0:
		return []doctor.Finding{doctor.Told(on, "%s (container %s).", where, strings.Join(in.Own, ", "))}
	case unknown != nil:
		return []doctor.Finding{doctor.Unsure(on,
			fmt.Sprintf("%s. It is unknown which container has the %s: %v.", where, what, unknown))}
	case len(in.Maybe) > 0:
		return []doctor.Finding{doctor.Unsure(on,
			fmt.Sprintf("%s. The %s might belong to %s.", where, what, strings.Join(in.Maybe, ", ")))}
	case len(in.Node) > 0:
		where += ", so container " + strings.Join(in.Node, ", ") + " cannot use the " + what
	}
	return []doctor.Finding{fixed(doctor.Fault(on, fmt.Sprintf("%s. No running container in that namespace has the "+
		"%s. A pod terminated without returning the %[2]s.", where, what), ""))}
}
