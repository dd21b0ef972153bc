{{- define "nri-rdma.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* The name that all objects of a release share in the release's namespace. */}}
{{- define "nri-rdma.fullname" -}}
{{- $name := include "nri-rdma.name" . -}}
{{- $full := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- .Values.fullnameOverride | default $full | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "nri-rdma.namespace" -}}
{{- .Values.namespaceOverride | default .Release.Namespace }}
{{- end }}

{{/* The labels by which the DaemonSet selects its pods. The labels are immutable. */}}
{{- define "nri-rdma.selectorLabels" -}}
{{- toYaml (dict "app.kubernetes.io/name" (include "nri-rdma.name" .) "app.kubernetes.io/instance" .Release.Name) }}
{{- end }}

{{- define "nri-rdma.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (ternary (include "nri-rdma.fullname" .) "default" .Values.serviceAccount.create) }}
{{- end }}

{{/* The labels of the plugin's pods. kubectl rdma finds the pods by the label part-of, regardless of the pods' names. */}}
{{- define "nri-rdma.podLabels" -}}
{{- $ours := include "nri-rdma.selectorLabels" . | fromYaml -}}
{{- toYaml (merge $ours (dict "app.kubernetes.io/part-of" "rdma-spec") (.Values.podLabels | default dict) (.Values.commonLabels | default dict)) }}
{{- end }}

{{/* The labels of an object. The argument is a list: the root context, and additional labels. */}}
{{- define "nri-rdma.labels" -}}
{{- $ := index . 0 -}}
{{- $ours := include "nri-rdma.selectorLabels" $ | fromYaml -}}
{{- $standard := dict "app.kubernetes.io/part-of" "rdma-spec" "app.kubernetes.io/version" ($.Chart.AppVersion | replace "+" "_" | trunc 63)
  "app.kubernetes.io/managed-by" $.Release.Service
  "helm.sh/chart" (printf "%s-%s" $.Chart.Name $.Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-") -}}
{{- toYaml (merge $ours $standard (index . 1 | default dict) ($.Values.commonLabels | default dict)) }}
{{- end }}

{{/* The image that contains both programs. The first part of the image's name is a registry if this part contains a dot or a port, or is localhost. */}}
{{- define "nri-rdma.image" -}}
{{- $i := .Values.image -}}
{{- with .Values.global.imageRegistry }}{{ trimSuffix "/" . }}/{{ regexReplaceAll "^([^/]*[.:][^/]*|localhost)/" $i.repository "" }}
{{- else }}{{ $i.repository }}{{ end }}{{ if $i.digest }}@{{ $i.digest }}{{ else }}:{{ $i.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{/* The directory of the runtime's sockets. The plugin looks for the sockets at the same path below /host. */}}
{{- define "nri-rdma.runtimeDir" -}}
{{- get (dict "containerd" "/run/containerd" "crio" "/run/crio" "k3s" "/run/k3s/containerd" "rke2" "/run/k3s/containerd"
  "microk8s" "/var/snap/microk8s/common/run" "k0s" "/run/k0s") .Values.runtime }}
{{- end }}

{{- define "nri-rdma.kubeletRoot" -}}
{{- .Values.kubeletRoot | default (get (dict "microk8s" "/var/snap/microk8s/common/var/lib/kubelet" "k0s" "/var/lib/k0s/kubelet") .Values.runtime)
  | default "/var/lib/kubelet" }}
{{- end }}

{{- define "nri-rdma.seLinuxType" -}}
{{- .Values.seLinuxType | default (ternary "spc_t" "" .Values.openshift.enabled) }}
{{- end }}

{{/* The probes. The container is ready if the plugin can look up device numbers, and is either registered with the runtime or waiting for a
registered plugin to exit. The probes tolerate a busy node: during an update, Kubernetes deletes an old pod that is unready before the new pod is
ready, and the runtime then creates containers without the plugin. */}}
{{- define "nri-rdma.probes" -}}
{{- $name := index . 1 -}}
{{- if (index . 0).Values.hostNetwork -}}
# The readiness probe runs a command, because an HTTP probe would need a port on the node, and two pods cannot share a port. The container
# has no liveness probe, because such a probe would fail whenever the runtime hangs. A pod becomes unready only after five minutes of
# failures. A restart of the runtime takes less time, and therefore does not make the pod unready.
readinessProbe:
  exec:
    command: [/usr/local/bin/nri-rdma, --ready=/run/nri-rdma/{{ $name }}.sock]
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 30
{{- else -}}
readinessProbe:
  httpGet:
    path: /readyz
    port: {{ $name }}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: 12
livenessProbe:
  httpGet:
    path: /healthz
    port: {{ $name }}
  periodSeconds: 30
  timeoutSeconds: 10
{{- end }}
{{- end }}

{{/* The Secrets for pulling the image, each as an object with a name, or as only a name. */}}
{{- define "nri-rdma.imagePullSecrets" -}}
{{- range concat (.Values.imagePullSecrets | default list) (.Values.global.imagePullSecrets | default list) }}
- name: {{ if kindIs "string" . }}{{ . }}{{ else }}{{ .name }}{{ end }}
{{- end }}
{{- end }}

{{- define "nri-rdma.podSecurityContext" -}}
runAsUser: 0 # the sockets belong to root, and only root can enter the directory of NRI's socket
runAsGroup: 0
seccompProfile:
  type: RuntimeDefault
{{- if include "nri-rdma.seLinuxType" . }}
seLinuxOptions: {type: {{ include "nri-rdma.seLinuxType" . }}}
{{- else }}
# If SELinux is in enforcing mode, ordinary containers cannot open the sockets. To allow access, uncomment this line:
# seLinuxOptions: {type: spc_t}
{{- end }}
{{- end }}

{{/* The environment variables of the plugin and the validator: the pod's namespace, pod name, and node, and the variables that a user adds. */}}
{{- define "nri-rdma.env" -}}
- name: NRI_RDMA_NAMESPACE
  valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
- name: NRI_RDMA_POD
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
# The commands in the plugin's log contain this node name.
- name: NRI_RDMA_NODE
  valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* The mounts through which the plugin, the validator, and rdma-spec see the node. */}}
{{- define "nri-rdma.mounts" -}}
- name: nri
  mountPath: /var/run/nri
  readOnly: true
- name: sys-class
  mountPath: /host/sys/class
  readOnly: true
- name: sys-devices
  mountPath: /host/sys/devices
  readOnly: true
- name: sys-dev
  mountPath: /host/sys/dev
  readOnly: true
- name: sys-module
  mountPath: /host/sys/module
  readOnly: true
- name: dev
  mountPath: /host/dev
  readOnly: true
- name: pod-resources
  mountPath: /host/var/lib/kubelet/pod-resources
  readOnly: true
{{- end }}

{{/* The mounts of the policy, and of the directory through which the plugin and the validator hand over to their replacements. */}}
{{- define "nri-rdma.ownMounts" -}}
- name: config
  mountPath: /etc/rdma-spec
  readOnly: true
- name: handover
  mountPath: /run/rdma-spec/handover
{{- if .Values.hostNetwork }}
- name: sockets
  mountPath: /run/nri-rdma
{{- end }}
{{- end }}

{{/* The annotation of the pod template that contains the policy. Because of this annotation, each change to the policy is a rollout, and a rollback
reverts the change. */}}
{{- define "nri-rdma.policyKey" -}}
rdma-spec.github.io/policy
{{- end }}

{{/* The policy without added defaults, because an older plugin might not know the key of a default. */}}
{{- define "nri-rdma.policy" -}}
{{ toYaml .Values.config }}
{{ end }}

{{/* The additional mounts that rdma-spec status needs: processes and the runtime's socket. */}}
{{- define "nri-rdma.statusMounts" -}}
- name: proc
  mountPath: /host/proc
  readOnly: true
{{- if and (ne .Values.privileges "adjust") (eq .Values.runtime "crio") }}
- name: crio
  mountPath: /host/run/crio
  readOnly: true
{{- else if ne .Values.privileges "adjust" }}
- name: containerd
  mountPath: /host{{ include "nri-rdma.runtimeDir" . }}
  readOnly: true
  mountPropagation: HostToContainer # otherwise, mounts of deleted containers would remain in this container
{{- end }}
{{- end }}

{{/* The volumes of the node's directories that the plugin, the validator, and rdma-spec mount. */}}
{{- define "nri-rdma.volumes" -}}
# The pod mounts the directory instead of the socket, because the runtime creates a new socket each time it starts.
- name: nri
  hostPath:
    path: /var/run/nri
    type: {{ ternary "DirectoryOrCreate" "Directory" .Values.configureNRI.enabled }}
# The pod mounts only the parts of sysfs that describe the HCAs, and omits others, such as the control groups.
- name: sys-class
  hostPath:
    path: /sys/class
    type: Directory
- name: sys-devices
  hostPath:
    path: /sys/devices
    type: Directory
# The plugin looks up device numbers in this directory. Without this directory, the plugin cannot tell which containers have a verbs device,
# so the plugin is not ready.
- name: sys-dev
  hostPath:
    path: /sys/dev
    type: Directory
# From this directory, the plugin learns whether each HCA can be used in only one network namespace.
- name: sys-module
  hostPath:
    path: /sys/module
    type: Directory
# The pod mounts the whole of /dev, because /dev/infiniband appears and disappears with the drivers. The plugin reads the metadata of device
# nodes, but does not open the devices. The pod's device cgroup would not allow the plugin to open them.
- name: dev
  hostPath:
    path: /dev
    type: Directory
# Through this directory, the plugin asks the kubelet for each container's resources, so that rules can match them.
- name: pod-resources
  hostPath:
    path: {{ include "nri-rdma.kubeletRoot" . }}/pod-resources
    type: Directory
# From this directory, the plugin reads the limits of processes without needing hostPID. On CRI-O, the plugin uses the containers'
# limits to confirm grants. The plugin also reads the runtime's own limit, because no container can start with a higher limit.
- name: proc
  hostPath:
    path: /proc
    type: Directory
{{- if and (ne .Values.privileges "adjust") (eq .Values.runtime "crio") }}
# Within the pod, only rdma-spec uses this directory. With CRI-O, the plugin itself uses only NRI.
- name: crio
  hostPath:
    path: /run/crio
    type: Directory
{{- else if ne .Values.privileges "adjust" }}
# The plugin grants CAP_IPC_LOCK through containerd's own API, whose socket is in this directory.
- name: containerd
  hostPath:
    path: {{ include "nri-rdma.runtimeDir" . }}
    type: Directory
{{- end }}
# The plugin writes the policy in force to this directory, and rdma-spec reads it there.
- name: policy
  hostPath:
    path: /run/rdma-spec
    type: DirectoryOrCreate
{{- end }}

{{/* The volumes that only the plugin and the validator use. */}}
{{- define "nri-rdma.ownVolumes" -}}
- name: config
  projected:
    sources:
      {{- if .Values.configMap }}
      - configMap:
          name: {{ .Values.configMap }}
          items: [{key: config.yaml, path: config.yaml}]
      {{- else }}
      - downwardAPI:
          items:
            - path: config.yaml
              fieldRef: {fieldPath: "metadata.annotations['{{ include "nri-rdma.policyKey" . }}']"}
      {{- end }}
      {{- if .Values.doctor.ignore }}
      - configMap:
          name: {{ include "nri-rdma.fullname" . }}
          items: [{key: doctor.yaml, path: doctor.yaml}]
      {{- end }}
# This directory keeps the policies that were last in force, even across reboots. rdma-spec configure keeps its record in the
# parent directory.
- name: kept
  hostPath:
    path: /var/lib/rdma-spec/inforce
    type: DirectoryOrCreate
# Through this directory, a plugin hands its connection over to its replacement. Only the plugins of this release share the directory.
- name: handover
  hostPath:
    path: /run/rdma-spec/handover/{{ include "nri-rdma.namespace" . }}.{{ include "nri-rdma.fullname" . }}
    type: DirectoryOrCreate
{{- if .Values.hostNetwork }}
# Through this directory, the kubelet's probes check whether the plugin and the validator are ready.
- name: sockets
  emptyDir: {sizeLimit: 1Mi}
{{- end }}
{{- end }}

{{/* Formats a list of words for CEL. The chart's schema forbids quotes in the words. */}}
{{- define "nri-rdma.words" -}}
[{{ range $i, $word := . }}{{ if $i }}, {{ end }}"{{ $word }}"{{ end }}]
{{- end }}
