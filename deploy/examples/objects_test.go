// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package examples_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	strictjson "sigs.k8s.io/json"
)

// kubernetes are the types of objects that Kubernetes itself has.
var kubernetes = map[string]func() any{
	"v1 Pod":                   func() any { return new(corev1.Pod) },
	"v1 Namespace":             func() any { return new(corev1.Namespace) },
	"v1 ConfigMap":             func() any { return new(corev1.ConfigMap) },
	"v1 PersistentVolumeClaim": func() any { return new(corev1.PersistentVolumeClaim) },
	"apps/v1 StatefulSet":      func() any { return new(appsv1.StatefulSet) },
	"apps/v1 DaemonSet":        func() any { return new(appsv1.DaemonSet) },
}

// fields are those that other projects' API types and charts have and examples use. Behind "=" is a text whose fields are those of
// another entry.
var fields = map[string]string{
	"kubeflow.org/v2beta1 MPIJob": `spec.slotsPerWorker spec.runPolicy.cleanPodPolicy
		spec.mpiReplicaSpecs.Launcher.replicas spec.mpiReplicaSpecs.Launcher.template
		spec.mpiReplicaSpecs.Worker.replicas spec.mpiReplicaSpecs.Worker.template`,
	"batch.volcano.sh/v1alpha1 Job": `spec.schedulerName spec.queue spec.minAvailable spec.plugins.pytorch spec.plugins.svc
		spec.policies.event spec.policies.action spec.tasks.name spec.tasks.replicas spec.tasks.policies.event
		spec.tasks.policies.action spec.tasks.template`,
	"mellanox.com/v1alpha1 NicClusterPolicy": `spec.tolerations.key spec.tolerations.operator spec.tolerations.effect
		spec.ofedDriver.image spec.ofedDriver.repository spec.ofedDriver.version
		spec.ofedDriver.upgradePolicy.autoUpgrade spec.ofedDriver.upgradePolicy.maxParallelUpgrades
		spec.ofedDriver.upgradePolicy.drain.enable spec.ofedDriver.upgradePolicy.drain.force
		spec.ofedDriver.upgradePolicy.drain.deleteEmptyDir spec.ofedDriver.upgradePolicy.drain.timeoutSeconds
		spec.rdmaSharedDevicePlugin.image spec.rdmaSharedDevicePlugin.repository spec.rdmaSharedDevicePlugin.version
		spec.rdmaSharedDevicePlugin.config=rdma-shared-device-plugin
		spec.sriovDevicePlugin.image spec.sriovDevicePlugin.repository spec.sriovDevicePlugin.version
		spec.sriovDevicePlugin.config=sriov-device-plugin
		spec.secondaryNetwork.cniPlugins.image spec.secondaryNetwork.cniPlugins.repository
		spec.secondaryNetwork.cniPlugins.version spec.secondaryNetwork.multus.image
		spec.secondaryNetwork.multus.repository spec.secondaryNetwork.multus.version
		spec.secondaryNetwork.ipamPlugin.image spec.secondaryNetwork.ipamPlugin.repository
		spec.secondaryNetwork.ipamPlugin.version`,
	"mellanox.com/v1alpha1 NicNodePolicy": `spec.nodeSelector spec.tolerations.key spec.tolerations.operator
		spec.tolerations.effect spec.ofedDriver.image spec.ofedDriver.repository spec.ofedDriver.version
		spec.ofedDriver.env.name spec.ofedDriver.env.value spec.ofedDriver.upgradePolicy.autoUpgrade
		spec.ofedDriver.upgradePolicy.maxParallelUpgrades spec.ofedDriver.upgradePolicy.drain.enable
		spec.ofedDriver.upgradePolicy.drain.force spec.ofedDriver.upgradePolicy.drain.deleteEmptyDir
		spec.ofedDriver.upgradePolicy.drain.timeoutSeconds spec.rdmaSharedDevicePlugin.image
		spec.rdmaSharedDevicePlugin.repository spec.rdmaSharedDevicePlugin.version
		spec.rdmaSharedDevicePlugin.config=rdma-shared-device-plugin`,
	"network-operator.values.yaml": `nfd.enabled`,
	"rdma-shared-device-plugin": `periodicUpdateInterval configList.resourcePrefix configList.resourceName
		configList.rdmaHcaMax configList.selectors.vendors configList.selectors.deviceIDs configList.selectors.drivers
		configList.selectors.ifNames configList.selectors.linkTypes`,
	"sriov-device-plugin": `resourceList.resourcePrefix resourceList.resourceName resourceList.selectors.vendors
		resourceList.selectors.linkTypes resourceList.selectors.isRdma`,
	"mellanox.com/v1alpha1 HostDeviceNetwork": `spec.networkNamespace spec.resourceName spec.ipam=whereabouts`,
	"whereabouts": `type datastore kubernetes.kubeconfig range exclude`,
	"sriovnetwork.openshift.io/v1 SriovNetworkNodePolicy": `spec.resourceName spec.nodeSelector spec.numVfs
		spec.nicSelector.vendor spec.nicSelector.pfNames spec.deviceType spec.linkType spec.isRdma`,
	"sriovnetwork.openshift.io/v1 SriovIBNetwork": `spec.networkNamespace spec.resourceName spec.linkState
		spec.ipam=whereabouts`,
	"spiderpool.spidernet.io/v2beta1 SpiderIPPool": `spec.subnet spec.ips spec.gateway`,
	"spiderpool.spidernet.io/v2beta1 SpiderMultusConfig": `spec.cniType spec.macvlan.master
		spec.macvlan.rdmaResourceName spec.macvlan.ippools.ipv4`,
}

// object is an object of an example.
type object map[string]any

// at returns what an object has at a path, or the zero value.
func at[T any](o map[string]any, path ...string) (value T) {
	for _, key := range path[:len(path)-1] {
		o, _ = o[key].(map[string]any)
	}
	value, _ = o[path[len(path)-1]].(T)
	return value
}

func (o object) kind() string { return at[string](o, "apiVersion") + " " + at[string](o, "kind") }

// name returns an object's namespace and name. Without a namespace it is in default.
func (o object) name() string {
	namespace := at[string](o, "metadata", "namespace")
	if namespace == "" {
		namespace = "default"
	}
	return namespace + "/" + at[string](o, "metadata", "name")
}

// problems returns what is wrong with the fields of an object: unknown ones, as the API server would report them.
func (o object) problems(text []byte) (all []string) {
	if empty, ok := kubernetes[o.kind()]; ok {
		return strict(text, empty())
	}
	known, ok := fields[o.kind()]
	if !ok {
		return []string{"nobody checks a " + o.kind()}
	}
	rest := maps.Clone(o)
	delete(rest, "apiVersion")
	delete(rest, "kind")
	delete(rest, "metadata")
	return unknown(map[string]any(rest), "", strings.Fields(known))
}

// unknown returns the fields of a value that are not known, and what is wrong with its pod templates and texts.
func unknown(value any, path string, known []string) (all []string) {
	if values, ok := value.([]any); ok {
		for _, v := range values {
			all = append(all, unknown(v, path, known)...)
		}
		return all
	}
	at := slices.IndexFunc(known, func(k string) bool { return k == path || strings.HasPrefix(k, path+"=") })
	switch value := value.(type) {
	case map[string]any:
		if strings.HasSuffix(path, ".template") && at >= 0 {
			text, err := json.Marshal(value)
			if err != nil {
				return []string{err.Error()}
			}
			return strict(text, new(corev1.PodTemplateSpec))
		}
		for key, v := range value {
			if at < 0 { // a map of strings, such as nodeSelector, is known as a whole
				all = append(all, unknown(v, strings.TrimPrefix(path+"."+key, "."), known)...)
			}
		}
		return all
	case string:
		if at < 0 {
			break
		}
		if _, inner, ok := strings.Cut(known[at], "="); ok {
			var text map[string]any
			if err := strictjson.UnmarshalCaseSensitivePreserveInts([]byte(value), &text); err != nil {
				return []string{fmt.Sprintf("%s: %v", path, err)}
			}
			return unknown(text, "", strings.Fields(fields[inner]))
		}
	}
	if at < 0 {
		return []string{"unknown field " + path}
	}
	return nil
}

// strict decodes JSON as the API server does.
func strict(text []byte, into any) (all []string) {
	wrong, err := strictjson.UnmarshalStrict(text, into)
	if err != nil {
		wrong = append(wrong, err)
	}
	for _, w := range wrong {
		all = append(all, w.Error())
	}
	return all
}
