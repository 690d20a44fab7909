{{- define "sluice.name" -}}
{{- default .Release.Name .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{/* The image of a part: (dict "root" $ "part" "agent"). A digest wins over a tag. */}}
{{- define "sluice.image" -}}
{{- $image := (index .root.Values .part).image -}}
{{- $name := printf "%s/%s" (trimSuffix "/" .root.Values.image.registry) $image.repository | trimPrefix "/" -}}
{{- if $image.digest -}}
{{ $name }}@{{ $image.digest }}
{{- else -}}
{{ $name }}:{{ $image.tag | default .root.Values.image.tag | default .root.Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{- define "sluice.labels" -}}
app.kubernetes.io/name: sluice
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{- define "sluice.selector" -}}
app.kubernetes.io/name: sluice
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{/* Returns yes if there is an API server: with `helm template` every lookup is empty. */}}
{{- define "sluice.online" -}}
{{- if lookup "v1" "Namespace" "" "kube-system" }}yes{{ end -}}
{{- end -}}

{{/* Sets keys in a section of TOML text: (dict "text" T "section" S "lines" (dict KEY LINE)). A key that is in
     the text's own section already is kept; a missing section is added. */}}
{{- define "sluice.section" -}}
{{- $lines := list -}}
{{- range $key, $line := .lines -}}
{{- if not (regexMatch (printf "(?s)(^|\n)\\[%s\\][^\n]*\n([^\\[][^\n]*\n|\n)*?[ \t]*%s[ \t]*=" $.section $key) (printf "%s\n" $.text)) -}}
{{- $lines = append $lines (printf "%s = %s" $key $line) -}}
{{- end -}}
{{- end -}}
{{- $header := printf "[%s]" .section -}}
{{- if regexMatch (printf "(?m)^\\[%s\\]" .section) .text -}}
{{- $made := join "\n" (prepend $lines $header) | replace "$" "$$" -}}
{{- regexReplaceAll (printf "(?m)^\\[%s\\]" .section) .text $made -}}
{{- else -}}
{{- join "\n" (prepend $lines $header) }}
{{ if .text }}
{{ .text }}{{ end -}}
{{- end -}}
{{- end -}}

{{/* How many controllers there are in modes kubernetes and beside: on two nodes the loss of one leaves a replica that answers. */}}
{{- define "sluice.queueReplicas" -}}
{{- $nodes := len ((lookup "v1" "Node" "" "").items | default list) -}}
{{- .Values.queue.replicas | default (ternary 2 1 (gt $nodes 1)) -}}
{{- end -}}

{{/* Security context of a pod without privileges: (dict "root" $ "user" 64000 "selinux" OPTIONS). On OpenShift the ids are of the namespace's
     range. */}}
{{- define "sluice.podSecurity" -}}
runAsNonRoot: true
{{- if not .root.Values.openShift }}
runAsUser: {{ .user }}
runAsGroup: {{ .user }}
fsGroup: {{ .user }}
{{- end }}
seccompProfile: {type: RuntimeDefault}
{{- with .selinux }}
seLinuxOptions: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* The name of the Secret with the controller's certificate. */}}
{{- define "sluice.tlsSecret" -}}
{{- .Values.queue.tlsSecret | default (printf "%s-queue-tls" (include "sluice.name" .)) -}}
{{- end -}}

{{/* Labels of nodes with NVIDIA's GPUs, one term each; any of them is enough. */}}
{{- define "sluice.gpuLabels" -}}
- {key: nvidia.com/gpu.present, operator: In, values: ["true"]}
- {key: sluice.dev/gpu, operator: In, values: ["true"]}
- {key: feature.node.kubernetes.io/pci-10de.present, operator: In, values: ["true"]}
- {key: feature.node.kubernetes.io/pci-0302_10de.present, operator: In, values: ["true"]}
- {key: feature.node.kubernetes.io/pci-0300_10de.present, operator: In, values: ["true"]}
- {key: cloud.google.com/gke-accelerator, operator: Exists}
- {key: k8s.amazonaws.com/accelerator, operator: Exists}
- {key: kubernetes.azure.com/accelerator, operator: In, values: ["nvidia"]}
{{- end -}}

{{/* Nodes of the agent, and of the cleanup after it. */}}
{{- define "sluice.agentPlace" -}}
{{- with .Values.agent.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- if .Values.agent.affinity }}
affinity: {{- toYaml .Values.agent.affinity | nindent 2 }}
{{- else if not .Values.agent.nodeSelector }}
affinity:
  nodeAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      nodeSelectorTerms:
        {{- $labels := include "sluice.gpuLabels" . | fromYamlArray }}
        {{- if .Values.simulatedGpus }}
        - matchExpressions:
            {{- range $labels }}
            - key: {{ .key }}
              {{- if eq .operator "Exists" }}
              operator: DoesNotExist
              {{- else }}
              operator: NotIn
              values: {{ toJson .values }}
              {{- end }}
            {{- end }}
        {{- else }}
        {{- range $labels }}
        - matchExpressions:
            - {{ toJson . }}
        {{- end }}
        {{- end }}
{{- end }}
{{- with .Values.agent.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* --- unknown values --- */}}

{{/* The Levenshtein distance of .a and .b, row by row. */}}
{{- define "sluice.distance" -}}
{{- $row := list -}}
{{- $b := splitList "" .b -}}
{{- range $j := until (add1 (len $b) | int) }}{{ $row = append $row $j }}{{ end -}}
{{- range $i, $letter := splitList "" .a -}}
{{- $next := list (add1 $i) -}}
{{- range $j, $other := $b -}}
{{- $changed := add (index $row $j) (ternary 0 1 (eq $letter $other)) -}}
{{- $next = append $next (min $changed (add1 (index $row (add1 $j | int))) (add1 (index $next $j))) -}}
{{- end -}}
{{- $row = $next -}}
{{- end -}}
{{- last $row -}}
{{- end -}}

{{/* Every known key as a path, one a line: (dict "known" MAP "at" PATH). */}}
{{- define "sluice.knownPaths" -}}
{{- range $key, $value := .known }}
{{- $at := printf "%s.%s" $.at $key | trimPrefix "." }}
{{ $at }}
{{- if and (kindIs "map" $value) $value }}{{ include "sluice.knownPaths" (dict "known" $value "at" $at) }}{{ end }}
{{- end }}
{{- end -}}

{{/* Values that are not in values.yaml, one path a line. Values that are passed to Kubernetes unchanged have Kubernetes' keys. */}}
{{- define "sluice.unknownPaths" -}}
{{- $free := list "nodeSelector" "affinity" "resources" "podAnnotations" "labels" "securityContext" "seLinuxOptions" }}
{{- range $key, $value := .values }}
{{- $at := printf "%s.%s" $.at $key | trimPrefix "." }}
{{- if not (hasKey $.known $key) }}
{{- if ne $at "global" }}
{{ $at }}
{{- end }}
{{- else if and (kindIs "map" $value) (kindIs "map" (index $.known $key)) (not (has $key $free)) }}
{{- include "sluice.unknownPaths" (dict "values" $value "known" (index $.known $key) "at" $at) }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Fails with every unknown value and the nearest known one, because a mistyped value would have no effect. */}}
{{- define "sluice.checkValues" -}}
{{- $known := .Files.Get "files/values.yaml" | fromYaml -}}
{{- $unknown := include "sluice.unknownPaths" (dict "values" .Values "known" $known "at" "") | splitList "\n" | compact -}}
{{- if $unknown -}}
{{- $paths := include "sluice.knownPaths" (dict "known" $known "at" "") | splitList "\n" | compact -}}
{{- $problems := list -}}
{{- range $path := $unknown -}}
{{- $name := splitList "." $path | last -}}
{{- $nearest := "" -}}{{- $least := 1000 -}}
{{- range $paths -}}
{{- /* The right name in the wrong place is nearer than a similar path. */ -}}
{{- $far := include "sluice.distance" (dict "a" $path "b" .) | atoi -}}
{{- if eq $name (splitList "." . | last) }}{{ $far = divf $far 2 | floor | int }}{{ end -}}
{{- if lt $far $least }}{{ $nearest = . }}{{ $least = $far }}{{ end -}}
{{- end -}}
{{- $problems = append $problems (printf "unknown value %s: did you mean %s?" $path $nearest) -}}
{{- end -}}
{{- fail (printf "\n%s" (join "\n" $problems)) -}}
{{- end -}}
{{- end -}}

{{/* A model that the simulator does not have would let every agent's pod fail again and again. */}}
{{- define "sluice.checkSimulated" -}}
{{- $known := .Files.Get "files/simulated-models.txt" | splitList "\n" | compact -}}
{{- range $part := splitList "," .Values.simulatedGpus | compact -}}
{{- $model := regexReplaceAll "^([1-9][0-9]*x)?([^:]*).*$" $part "${2}" -}}
{{- if not (has $model $known) -}}
{{- fail (printf "simulatedGpus: %s: there is no model %s; there are %s" $part $model (join ", " $known)) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Fails where new nodes are requested without what that needs. */}}
{{- define "sluice.checkNodeRequests" -}}
{{- if and (eq .Values.shares.visibleDevices "void") (not (and .Values.queue.enabled (eq .Values.queue.mode "kubernetes"))) }}{{ fail "\nshares.visibleDevices: void is for queue.mode=kubernetes, where pods are changed at creation: set it to refuse" }}{{ end -}}
{{- if and .Values.queue.enabled (ne .Values.queue.nodeRequests "none") -}}
{{- if not (and (eq .Values.queue.mode "kubernetes") .Values.scheduler.enabled) }}{{ fail "\nqueue.nodeRequests: is for queue.mode=kubernetes with scheduler.enabled: set it to none" }}{{ end -}}
{{- if not (or .Values.queue.nodeTemplates .Values.queue.nodeTemplatesMap) }}{{ fail "\nqueue.nodeTemplates: is missing: queue.nodeRequests needs it, or queue.nodeTemplatesMap" }}{{ end -}}
{{- end -}}
{{- end -}}

{{/* Fails with the name of every value that has no effect beside Kueue. Defaults are not reported. */}}
{{- define "sluice.checkBeside" -}}
{{- if and .Values.queue.enabled (eq .Values.queue.mode "beside") -}}
{{- $problems := list -}}
{{- range $key := list "admins" "users" "checks" -}}
{{- if index $.Values.queue $key }}{{ $problems = append $problems (printf "queue.%s: has no effect beside Kueue, where the API server's RBAC applies; it is for mode standalone" $key) }}{{ end -}}
{{- end -}}
{{- if .Values.queue.persistence.existingClaim }}{{ $problems = append $problems "queue.persistence.existingClaim: has no effect beside Kueue: reservations are stored in the Workloads" }}{{ end -}}
{{- if or .Values.queue.page.service .Values.queue.page.viewers .Values.queue.page.operators }}{{ $problems = append $problems "queue.page: there is no page beside Kueue, because its queues are not read" }}{{ end -}}
{{- if or .Values.scheduler.callers .Values.scheduler.image .Values.scheduler.managedResources }}{{ $problems = append $problems "scheduler: has no effect beside Kueue, where the cluster's own scheduler places the pods" }}{{ end -}}
{{- if .Values.shares.writers }}{{ $problems = append $problems "shares.writers: has no effect beside Kueue, where pods are not mutated at creation" }}{{ end -}}
{{- if or .Values.queue.kueueConfiguration .Values.queue.kueueConfigMap }}{{ $problems = append $problems "queue.kueueConfiguration, queue.kueueConfigMap: have no effect beside Kueue, which reads its own" }}{{ end -}}
{{- if not .Values.agent.enabled }}{{ $problems = append $problems "agent.enabled=false: beside Kueue the controller needs the agents' reports, so every check would stay Pending" }}{{ end -}}
{{- range $key := list "webhooks_listen" "visibility_listen" "kueue_configuration" -}}
{{- if regexMatch (printf "(?m)^[ \t]*%s[ \t]*=" $key) $.Values.queue.config }}{{ $problems = append $problems (printf "queue.config: %s has no effect beside Kueue, which has its own" $key) }}{{ end -}}
{{- end -}}
{{- if $problems }}{{ fail (printf "\n%s" (join "\n" $problems)) }}{{ end -}}
{{- end -}}
{{- end -}}

{{/* Fails for values that cannot work on this cluster, before any object is created; without a cluster nothing is checked. */}}
{{- define "sluice.checkCluster" -}}
{{- if include "sluice.online" . -}}
{{- $problems := list -}}
{{- $class := .Values.agent.runtimeClassName -}}
{{- if and .Values.agent.enabled $class (not .Values.simulatedGpus) (not (lookup "node.k8s.io/v1" "RuntimeClass" "" $class)) -}}
{{- $problems = append $problems (printf "agent.runtimeClassName: this cluster has no RuntimeClass %s, so no agent would start. Install NVIDIA's GPU operator or container toolkit with its RuntimeClass; or set agent.runtimeClassName=\"\" where NVIDIA's runtime is the nodes' default; or set simulatedGpus=2xh100-80gb to try Sluice without a GPU" $class) -}}
{{- end -}}
{{- $keep := .Values.queue.persistence -}}
{{- if and .Values.queue.enabled (eq .Values.queue.mode "standalone") $keep.enabled (not $keep.existingClaim) (not $keep.storageClass) (not (lookup "v1" "PersistentVolumeClaim" .Release.Namespace (printf "%s-queue" (include "sluice.name" .)))) -}}
{{- $default := "" -}}
{{- range (lookup "storage.k8s.io/v1" "StorageClass" "" "").items -}}
{{- if eq (dig "metadata" "annotations" "storageclass.kubernetes.io/is-default-class" "" .) "true" }}{{ $default = .metadata.name }}{{ end -}}
{{- end -}}
{{- if not $default -}}
{{- $problems = append $problems "queue.persistence: this cluster has no default StorageClass, so the controller's pod would stay Pending. Set queue.persistence.storageClass or queue.persistence.existingClaim; or queue.persistence.enabled=false to lose the queue with its pod, for trials; or queue.enabled=false" -}}
{{- end -}}
{{- end -}}
{{- if and $keep.enabled (not (and .Values.queue.enabled (eq .Values.queue.mode "standalone"))) -}}
{{- $claim := printf "%s-queue" (include "sluice.name" .) -}}
{{- $volume := lookup "v1" "PersistentVolumeClaim" .Release.Namespace $claim -}}
{{- $notes := dig "metadata" "annotations" (dict) $volume -}}
{{- if and (eq (dig "metadata" "labels" "app.kubernetes.io/instance" "" $volume) .Release.Name) (ne (get $notes "helm.sh/resource-policy") "keep") -}}
{{- $problems = append $problems (printf "queue.mode: this upgrade deletes the volume claim %s, with the standalone queue in it. To keep it: kubectl -n %s annotate pvc %s helm.sh/resource-policy=keep; to let it go: set queue.persistence.enabled=false" $claim .Release.Namespace $claim) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.queue.enabled (eq .Values.queue.mode "beside") -}}
{{- $kueue := lookup "apiextensions.k8s.io/v1" "CustomResourceDefinition" "" "workloads.kueue.x-k8s.io" -}}
{{- if not $kueue -}}
{{- $problems = append $problems "queue.mode=beside: this cluster has no Kueue (no definition workloads.kueue.x-k8s.io). Install it first; or set queue.mode=kubernetes, where Sluice is the queue" -}}
{{- else if eq (dig "metadata" "labels" "app.kubernetes.io/part-of" "" $kueue) "sluice" -}}
{{- $problems = append $problems "queue.mode=beside: the definition workloads.kueue.x-k8s.io is Sluice's own, of mode kubernetes. Set queue.mode=kubernetes; or delete the definitions (docs/queue/kueue-api.md) and install Kueue" -}}
{{- end -}}
{{- end -}}
{{- $enforced := dig "metadata" "labels" "pod-security.kubernetes.io/enforce" "" (lookup "v1" "Namespace" "" .Release.Namespace | default dict) -}}
{{- if and .Values.agent.enabled (has $enforced (list "baseline" "restricted")) -}}
{{- $problems = append $problems (printf "namespace %s refuses the agent's pods (pod-security.kubernetes.io/enforce=%s): kubectl label --overwrite namespace %s pod-security.kubernetes.io/enforce=privileged" .Release.Namespace $enforced .Release.Namespace) -}}
{{- end -}}
{{- if $problems }}{{ fail (printf "\n%s" (join "\n" $problems)) }}{{ end -}}
{{- end -}}
{{- end -}}

{{/* HAMi's and Kueue's own files, and node templates, given as text or by the name of a ConfigMap: one row for each, as JSON. Text lies in a
     ConfigMap of ours. Fails where both are given. */}}
{{- define "sluice.foreignFiles" -}}
{{- $rows := list (dict "text" "shares.deviceConfig" "map" "shares.deviceConfigMap" "key" "device-config.yaml" "for" "both") (dict "text" "shares.nodeConfig" "map" "shares.nodeConfigMap" "key" "config.json" "for" "agent") (dict "text" "queue.kueueConfiguration" "map" "queue.kueueConfigMap" "key" "controller_manager_config.yaml" "for" "queue") (dict "text" "queue.nodeTemplates" "map" "queue.nodeTemplatesMap" "key" "node-templates.yaml" "for" "queue") -}}
{{- $found := list -}}
{{- range $rows -}}
{{- $part := index $.Values (splitList "." .text | first) -}}
{{- $text := index $part (splitList "." .text | last) -}}
{{- $map := index $part (splitList "." .map | last) -}}
{{- if and $text $map }}{{ fail (printf "\n%s and %s: set one of them" .text .map) }}{{ end -}}
{{- if or $text $map }}{{ $found = append $found (dict "key" .key "text" $text "map" $map "for" .for "volume" (.key | replace "_" "-" | replace "." "-")) }}{{ end -}}
{{- end -}}
{{- toJson $found -}}
{{- end -}}

{{/* Volumes for those of a component: (dict "root" $ "for" "agent" "own" NAME-OF-OUR-CONFIGMAP). */}}
{{- define "sluice.foreignVolumes" -}}
{{- range include "sluice.foreignFiles" .root | fromJsonArray -}}
{{- if has .for (list "both" $.for) }}
- name: {{ .volume }}
  configMap: {name: {{ .map | default $.own }}, items: [{key: {{ .key }}, path: {{ .key }}}]}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Mounts of these volumes: /etc/sluice/foreign/VOLUME/KEY, a directory, so that a change of the ConfigMap arrives. */}}
{{- define "sluice.foreignMounts" -}}
{{- range include "sluice.foreignFiles" .root | fromJsonArray -}}
{{- if has .for (list "both" $.for) }}
- {name: {{ .volume }}, mountPath: /etc/sluice/foreign/{{ .volume }}, readOnly: true}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Text of these files in our ConfigMap. */}}
{{- define "sluice.foreignData" -}}
{{- range include "sluice.foreignFiles" .root | fromJsonArray -}}
{{- if and .text (has .for (list "both" $.for)) }}
{{ .key }}: |
  {{- .text | nindent 2 }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Path of one of these files in its container; empty if it is not given. */}}
{{- define "sluice.foreignPath" -}}
{{- range include "sluice.foreignFiles" .root | fromJsonArray -}}
{{- if eq .key $.key }}/etc/sluice/foreign/{{ .volume }}/{{ .key }}{{ end -}}
{{- end -}}
{{- end -}}

{{/* Names of the resources: the agent's, or those of HAMi's file where the agent's are the defaults. */}}
{{- define "sluice.resourceNames" -}}
{{- $usual := (.Files.Get "files/values.yaml" | fromYaml).agent.resourceNames -}}
{{- $text := .Values.shares.deviceConfig -}}
{{- if .Values.shares.deviceConfigMap -}}
{{- /* Without a cluster (helm template) the defaults are used. */ -}}
{{- $text = dig "data" "device-config.yaml" "" (lookup "v1" "ConfigMap" .Release.Namespace .Values.shares.deviceConfigMap | default dict) -}}
{{- end -}}
{{- $given := ($text | fromYaml).nvidia | default dict -}}
{{- $names := dict -}}
{{- range $key, $theirs := dict "count" "resourceCountName" "memory" "resourceMemoryName" "memoryPercentage" "resourceMemoryPercentageName" "cores" "resourceCoreName" -}}
{{- $own := index $.Values.agent.resourceNames $key -}}
{{- if and (eq $own (index $usual $key)) (index $given $theirs) }}{{ $own = index $given $theirs }}{{ end -}}
{{- $_ := set $names $key $own -}}
{{- end -}}
{{- $_ := set $names "priority" (index $given "resourcePriorityName" | default "nvidia.com/priority") -}}
{{- toYaml $names -}}
{{- end -}}

{{/* Resources that the extender counts instead of the scheduler: NVIDIA's, other vendors', and those in HAMi's file. */}}
{{- define "sluice.managedResources" -}}
{{- $names := include "sluice.resourceNames" . | fromYaml -}}
{{- $all := list $names.count $names.memory $names.memoryPercentage $names.cores $names.priority -}}
{{- if .Values.scheduler.vendors -}}
{{- $all = concat $all (.Files.Get "files/vendor-resources.yaml" | fromYaml).resources -}}
{{- range regexFindAll "resource\\w*Name\\w*[\"']?\\s*:\\s*[\"']?[A-Za-z0-9.-]+/[A-Za-z0-9._-]+" .Values.shares.deviceConfig -1 -}}
{{- $all = append $all (regexFind "[A-Za-z0-9.-]+/[A-Za-z0-9._-]+$" .) -}}
{{- end -}}
{{- end -}}
{{- toYaml (concat $all .Values.scheduler.managedResources | uniq) -}}
{{- end -}}

{{/* The scheduler's configuration: its profiles and the extender. */}}
{{- define "sluice.schedulerConfig" -}}
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection:
  leaderElect: true
  resourceName: {{ include "sluice.name" . }}-scheduler
  resourceNamespace: {{ .Release.Namespace }}
# By default only part of a large cluster is considered, and the free GPUs may be in the rest.
percentageOfNodesToScore: 100
profiles:
  {{- range .Values.scheduler.profiles }}
  - {schedulerName: {{ . }}}
  {{- end }}
extenders:
  {{- if .Values.scheduler.besideQueue }}
  # The pod's own loopback, which no other pod can reach.
  - urlPrefix: http://127.0.0.1:{{ .Values.scheduler.port }}/scheduler
  {{- else }}
  - urlPrefix: https://sluice-queue-webhooks.{{ .Release.Namespace }}.svc/scheduler
    enableHTTPS: true
    tlsConfig: {caFile: /etc/sluice/tls/ca.crt, certFile: /etc/sluice/tls/tls.crt, keyFile: /etc/sluice/tls/tls.key}
  {{- end }}
    filterVerb: filter
    prioritizeVerb: prioritize
    preemptVerb: preempt
    bindVerb: bind
    weight: {{ .Values.scheduler.weight }}
    nodeCacheCapable: true
    httpTimeout: 30s
    # The extender counts these, because a node's sums do not show whether one card has room.
    managedResources:
      {{- range include "sluice.managedResources" . | fromYamlArray }}
      - {name: {{ . }}, ignoredByScheduler: true}
      {{- end }}
{{- end -}}

{{- define "sluice.schedulerImage" -}}
{{- .Values.scheduler.image | default (printf "registry.k8s.io/kube-scheduler:%s" (regexFind "^v[0-9]+\\.[0-9]+\\.[0-9]+" .Capabilities.KubeVersion.Version)) -}}
{{- end -}}

{{- define "sluice.schedulerContainer" -}}
- name: scheduler
  image: {{ include "sluice.schedulerImage" . }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  command: ["kube-scheduler", "--config=/etc/sluice/config.yaml", "--secure-port=10259"]
  ports:
    - {name: https, containerPort: 10259}
  livenessProbe:
    httpGet: {path: /livez, port: https, scheme: HTTPS}
    periodSeconds: 10
    timeoutSeconds: 5
  {{- /* Beside the queue there is no readiness probe: the queue serves the API server whether its scheduler is ready or not. */}}
  {{- if not .Values.scheduler.besideQueue }}
  readinessProbe:
    httpGet: {path: /readyz, port: https, scheme: HTTPS}
    periodSeconds: 5
  {{- end }}
  securityContext:
    allowPrivilegeEscalation: false
    readOnlyRootFilesystem: true
    capabilities: {drop: [ALL]}
  resources: {{- toYaml .Values.scheduler.resources | nindent 4 }}
  volumeMounts:
    - {name: {{ ternary "scheduler" "config" .Values.scheduler.besideQueue }}, mountPath: /etc/sluice/config.yaml, subPath: config.yaml, readOnly: true}
    {{- if not .Values.scheduler.besideQueue }}
    - {name: tls, mountPath: /etc/sluice/tls, readOnly: true}
    {{- end }}
    - {name: tmp, mountPath: /tmp}
{{- end -}}
