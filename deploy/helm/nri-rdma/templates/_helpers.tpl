{{/* The image of both programs. */}}
{{- define "nri-rdma.image" -}}
{{- $i := .Values.image -}}
{{- $i.repository }}{{ if $i.digest }}@{{ $i.digest }}{{ else }}:{{ $i.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{/* Where the runtime's sockets are. The plugin looks for them at the same place below /host. */}}
{{- define "nri-rdma.runtimeFolder" -}}
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

{{- define "nri-rdma.readsProcesses" -}}
{{- if not (has (toString .Values.config.repair.mode) (list "off" "false")) }}yes{{ end }}
{{- end }}

{{/* The probes: ready means registered with the runtime, or waiting behind a plugin that is, and able to look up device numbers. They have patience with a busy node: during an
update, an old pod that is not ready is deleted before the new one is ready, and containers are created without the plugin. */}}
{{- define "nri-rdma.probes" -}}
readinessProbe:
  httpGet:
    path: /readyz
    port: {{ . }}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: 12
livenessProbe:
  httpGet:
    path: /healthz
    port: {{ . }}
  periodSeconds: 30
  timeoutSeconds: 10
{{- end }}

{{/* What plugin and validator see of the node. */}}
{{- define "nri-rdma.mounts" -}}
- name: config
  mountPath: /etc/rdma-spec
  readOnly: true
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
- name: handover
  mountPath: /run/rdma-spec/handover
{{- end }}

{{/* A list of words in CEL. The schema allows no quotes in them. */}}
{{- define "nri-rdma.words" -}}
[{{ range $i, $word := . }}{{ if $i }}, {{ end }}"{{ $word }}"{{ end }}]
{{- end }}
