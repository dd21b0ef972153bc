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

// netnsChecks are about HCAs and network namespaces.
func netnsChecks() []doctor.Check {
	return []doctor.Check{{
		ID: "netns-mode", Family: "netns",
		Title: "The RDMA subsystem's network namespace mode is the one that the node's plugins need.",
		Impact: "In exclusive mode, a pod can use an HCA only if rdma-cni or a DRA driver moves the HCA into the pod. In " +
			"shared mode, rdma-cni cannot move HCAs.",
		Look: netnsMode,
	}, {
		ID: "hca-present", Family: "netns",
		Title: "Each RDMA function with a driver has an HCA, and each RoCE port has an interface, on the node or in a " +
			"container.",
		Impact: "The node cannot use the HCA or its interface until the driver is rebound.",
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
		return []doctor.Finding{doctor.Fault("", "The mode is shared, but "+cni.Configured+
			" names rdma-cni, which needs exclusive mode.",
			"echo 'options ib_core netns_mode=0' > /etc/modprobe.d/rdma-spec-netns.conf && rdma system set netns exclusive || "+
				"echo 'restart the node'").Disruptive("pods that share HCAs lose them", "rdma-spec status")}
	case exclusive:
		return []doctor.Finding{doctor.Told("",
			"The mode is exclusive, as rdma-cni requires. A pod can use an HCA only if rdma-cni moves the HCA into the pod.")}
	}
	return nil
}

// exclusiveWithoutCNI is about a node in exclusive mode without rdma-cni: the containers say whether that is right.
func exclusiveWithoutCNI(v *doctor.View) []doctor.Finding {
	inventory, err := v.HCAs()
	if err == nil && len(inventory.Elsewhere) > 0 {
		return []doctor.Finding{doctor.Told("", "The mode is exclusive, and HCAs were moved into other network namespaces. "+
			"A pod can use an HCA only if a component such as DRANET moves the HCA into the pod.")}
	}
	containers, err := v.Containers()
	own := func(c node.Container) bool { return c.OwnNetwork || !c.Known }
	if err == nil && len(containers.Containers) > 0 && !slices.ContainsFunc(containers.Containers, own) {
		return []doctor.Finding{doctor.Told("", "The mode is exclusive. All RDMA containers use the node's network "+
			"namespace, where the HCAs are.")}
	}
	return []doctor.Finding{doctor.Unsure("", "The mode is exclusive, but rdma-cni is not installed in /opt/cni/bin, "+
		"/var/lib/cni/bin, or the data directory of K3s, and no CNI network configuration names it. This is correct if "+
		"pods with HCAs use the node's network, or if another component, such as DRANET, moves HCAs into them. Pods with "+
		"their own network cannot share HCAs in this mode.")}
}

// bonding is there where a card's second port is a part of an HCA of both: mlx5_bond_0.
const bonding = "net/*/bonding_slave"

// lostHCAs finds RDMA functions with a driver and without an HCA, and RoCE ports without an interface.
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

// withoutFunction is about a card without a function for RDMA. Before Linux 5.11, and for mlx4 before 6.7, drivers make
// none, and an HCA all the same.
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
		return []doctor.Finding{doctor.Unsure(on, "It has a driver for RDMA, but no HCA. Its firmware might be too old "+
			"for "+module+", or might have RDMA turned off. Check the kernel log.")}
	case !virtual && driver == "mlx5_core":
		return []doctor.Finding{doctor.Told(on, "It does not support RDMA. Exclude it from the device plugin's selector.")}
	}
	return nil
}

// hcaBelow finds a device without an HCA below it. sysfs hides HCAs of other network namespaces, but not their verbs
// devices: which container has them says whether the HCA is where it belongs.
func hcaBelow(v *doctor.View, at string, fixed func(doctor.Finding) doctor.Finding) []doctor.Finding {
	on := "PCI device " + path.Base(at)
	devices, _ := v.Glob(at + "/infiniband_verbs/*") // what cannot be listed is not there
	switch {
	case v.Any(at + "/infiniband/*"):
		return nil
	case len(devices) == 0:
		return []doctor.Finding{fixed(doctor.Fault(on, "It has a driver for RDMA, but no HCA.", ""))}
	}
	var number hca.Number
	_, err := fmt.Sscanf(doctor.Attribute(v, "sys/class/infiniband_verbs/"+path.Base(devices[0])+"/dev"), "%d:%d",
		&number.Major, &number.Minor)
	var holders node.Holders
	if err == nil {
		holders, err = v.HoldersOf(number)
	}
	return elsewhere(on, "Its HCA", holders, err, fixed)
}

// rebound adds to a finding the command that binds a device to its driver again. It is for devices that do nothing but
// RDMA: with a card's own driver, its network interfaces would go.
func rebound(bus, device string) func(doctor.Finding) doctor.Finding {
	return func(f doctor.Finding) doctor.Finding {
		f.Fix = rebindCommand(bus, device)
		return f.Command()
	}
}

// lostInterfaces finds ACTIVE RoCE ports whose interface is in another network namespace. Where no interface of a card
// is here, this is not the node's own network.
func lostInterfaces(v *doctor.View) (found []doctor.Finding) {
	inventory, err := v.HCAs()
	if err != nil || !v.Any(classNet+"*/device") {
		return nil // hca-answers says that
	}
	for _, h := range inventory.HCAs {
		for _, p := range h.Ports {
			if p.LinkLayer != "Ethernet" || h.PCI == "" || !p.Active() || len(p.Netdevs) > 0 || h.Purpose() != hca.PurposeRDMA ||
				h.NodeType != "CA" {
				continue
			}
			gids, err := v.GIDs(h.Name, p.Number)
			if err == nil && len(gids) == 0 {
				err = errors.New("the driver does not list its GIDs")
			}
			var holders node.Holders
			if err == nil {
				holders, err = v.HoldersOfInterface(gids)
			}
			found = append(found, elsewhere(portObject(h, p), "Its interface", holders, err,
				func(f doctor.Finding) doctor.Finding { return reload(h, f) })...)
		}
	}
	return found
}

// elsewhere is about something of the node that is in another network namespace.
func elsewhere(on, what string, in node.Holders, unknown error,
	fixed func(doctor.Finding) doctor.Finding) []doctor.Finding {
	what += " is in another network namespace"
	switch {
	case len(in.Own) > 0:
		return []doctor.Finding{doctor.Told(on, "%s: container %s has it.", what, strings.Join(in.Own, ", "))}
	case unknown != nil:
		return []doctor.Finding{doctor.Unsure(on,
			fmt.Sprintf("%s. The doctor cannot tell which container has it: %v.", what, unknown))}
	case len(in.Maybe) > 0:
		return []doctor.Finding{doctor.Unsure(on,
			fmt.Sprintf("%s. It might belong to %s.", what, strings.Join(in.Maybe, ", ")))}
	case len(in.Node) > 0:
		what += ", so container " + strings.Join(in.Node, ", ") + " cannot use it"
	}
	return []doctor.Finding{fixed(doctor.Fault(on, what+". No running container there has it: a pod terminated "+
		"without returning it.", ""))}
}
