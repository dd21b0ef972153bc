// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package collect

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/pelletier/go-toml/v2"
	"sigs.k8s.io/yaml"
)

// secret is in every text at each place that must be masked, and public at each that must stay.
const secret, public = "s3cr3t", "publ1c"

func TestMask(t *testing.T) {
	for name, text := range map[string]string{
		"containerd's registry.toml": `
version = 2
[plugins."io.containerd.grpc.v1.cri".registry.configs."publ1c.example.com".auth]
  username = "s3cr3t"
  password = 's3cr3t "s3cr3t'
  identitytoken = """
s3cr3t
s3cr3t"""
[plugins."io.containerd.grpc.v1.cri".registry.headers] # publ1c
  X-Anything = ["s3cr3t", "s3cr3t"]
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.publ1c]
  base_runtime_spec = "/etc/publ1c.json"
[proxy_plugins]
  address = "http://s3cr3t:s3cr3t@publ1c/"
`,
		"inline.toml": `
auth = {username = "s3cr3t", "password" = 's3cr3t', number = 12345, on = true}
registry.configs.x.auth.password = "s3cr3t"
args = ["--token=s3cr3t", "--publ1c=publ1c"]
default_env = [
  "A=s3cr3t", # with a comment
  'B=s3cr3t',
]
other = "publ1c"
pin = { token = 123456, next = "publ1c" }
`,
		"docker.json": `{"auths": {"publ1c": {"auth": "s3cr3t\"s3cr3t"}}, "proxies": {"httpProxy": "http://u:s3cr3t@publ1c:80"},
  "HttpHeaders": {}, "token": 123, "next": "publ1c"}`,
		"spec.json": "{\n  \"process\": {\n    \"env\": [\n      \"PATH=s3cr3t\",\n      \"A=s3cr3t\"\n    ],\n    \"cwd\": \"/publ1c\"\n  }\n}\n",
		"kubelet.yaml": `
tokens: s3cr3t
authentication: {webhook: {cacheTTL: publ1c}}
password: s3cr3t, and s3cr3t
headers:
  - Authorization: Bearer s3cr3t
  - s3cr3t
environment:
  nested:
    more: "s3cr3t"
clientSecret: |
  s3cr3t

  s3cr3t
after: publ1c
`,
		"containerd.service": `
[Service]
ExecStart=/usr/bin/publ1c
Environment="A=s3cr3t" "B=s3cr3t"
Environment=A=s3cr3t \
  B=s3cr3t
LimitMEMLOCK=publ1c
`,
		"key.pem":     "publ1c\n-----BEGIN EC PRIVATE KEY-----\ns3cr3t\ns3cr3t\n-----END EC PRIVATE KEY-----\npubl1c\n",
		"environment": "K3S_TOKEN=s3cr3t\nKUBELET_ARGS=publ1c\n",
		"kubeconfig.yaml": `
clusters:
- cluster: {server: https://publ1c, certificate-authority-data: publ1c}
users:
- user:
    client-certificate-data: publ1c
    client-key-data: s3cr3t
other:
  cert: LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tpubl1c
  key: LS0tLS1CRUdJTiBQUklWQVRFIEtFWS0tLS0ts3cr3t==
  ssh_key: s3cr3t
  wrapped: |
    LS0tLS1CRUdJTiBQUklWQVRFIEtFWS0tLS0tCnNlY3JldHNlY3JldHNlY3JldHNlY3JldHNlY3Jl
    s3cr3ts3cr3ts3cr3t
    s3cr3t==
  next: publ1c
`,
	} {
		t.Run(name, func(t *testing.T) {
			got := string(Mask([]byte(text)))
			if strings.Contains(got, secret) || strings.Count(got, public) != strings.Count(text, public) {
				t.Errorf("it has secrets, or public text is gone:\n%s", got)
			}
			sameShape(t, text, got)
			if again := string(Mask([]byte(got))); again != got {
				t.Errorf("masked again, it changes:\n%s", cmp.Diff(got, again))
			}
			var err error
			switch {
			case strings.HasSuffix(name, ".toml"):
				err = toml.Unmarshal([]byte(got), new(map[string]any))
			case strings.HasSuffix(name, ".json"):
				err = json.Unmarshal([]byte(got), new(any))
			case strings.HasSuffix(name, ".yaml"):
				err = yaml.Unmarshal([]byte(got), new(any))
			}
			if err != nil {
				t.Errorf("it can no longer be parsed: %v\n%s", err, got)
			}
		})
	}
}

// sameShape checks that nothing in a text has moved.
func sameShape(t *testing.T, before, after string) {
	t.Helper()
	if len(before) != len(after) {
		t.Fatalf("%d bytes became %d", len(before), len(after))
	}
	for i := range len(before) {
		if (before[i] == '\n') != (after[i] == '\n') {
			t.Fatalf("the line that ends at %d does not", i)
		}
	}
}

func TestMaskJSON(t *testing.T) {
	got, err := MaskJSON([]byte(`{"containers":[{"env":{"A":"s3cr3t"},"envs":["B=s3cr3t"],"memlock":18446744073709551615}],` +
		`"config":"[registry.configs.x.auth]\npassword = \"s3cr3t\"\n[publ1c]\n","auth":{"a":["s3cr3t",1,true]},"name":"<publ1c>"}`))
	want := `{
  "auth": {
    "a": [
      "xxxxxx",
      1,
      true
    ]
  },
  "config": "[registry.configs.x.auth]\npassword = \"xxxxxx\"\n[publ1c]\n",
  "containers": [
    {
      "env": {
        "A": "xxxxxx"
      },
      "envs": [
        "xxxxxxxx"
      ],
      "memlock": 18446744073709551615
    }
  ],
  "name": "<publ1c>"
}
`
	if diff := cmp.Diff(want, string(got)); diff != "" || err != nil {
		t.Errorf("%v, -want +got:\n%s", err, diff)
	}
	if _, err := MaskJSON([]byte("{")); err == nil {
		t.Error("half a document has no error")
	}
}

// FuzzMask masks any text. Its shape stays, and the values of a few keys that are put before it are gone.
func FuzzMask(f *testing.F) {
	f.Add("[a.auth]\nx = \"y\"\n", "k")
	f.Add("env: [\"a\", {b: c}]\n", "k")
	f.Add("password: |\n  x\n", "'")
	f.Fuzz(func(t *testing.T, text, rest string) {
		sameShape(t, text, string(Mask([]byte(text))))
		whole := "password = \"" + secret + "\"\ntoken: " + secret + "\n" + rest
		got := Mask([]byte(whole))
		sameShape(t, whole, string(got))
		if bytes.Contains(got[:len(whole)-len(rest)], []byte(secret)) {
			t.Errorf("the secret is still there:\n%s", got)
		}
	})
}
