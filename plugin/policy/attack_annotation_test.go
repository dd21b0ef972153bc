// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"strings"

	"github.com/rdma-spec/rdma-spec/spec"
)

// annotationAttacks are made with what an annotation's value or key looks like.
func annotationAttacks() []attack {
	const mebibyte = 1 << 20
	unreadable := func(guard, name, says, annotation string) attack {
		return attack{guard: guard, name: name, container: author(annotation), refused: CauseUnreadable, says: says}
	}
	bomb := "{a: &a [x,x,x,x,x,x,x,x,x]"
	for _, name := range []string{"b", "c", "d", "e", "f", "g", "h", "i"} {
		last := string(name[0] - 1)
		bomb += ", " + name + ": &" + name + " [*" + strings.Repeat(last+", *", 8) + last + "]"
	}
	scoped := func(annotations map[string]string) subject {
		return author("").with(func(c *subject) { c.Annotations = annotations })
	}
	return []attack{
		unreadable("annotation-size", "mebibyte-of-text", "longer than 1024 bytes", strings.Repeat("x", mebibyte)),
		unreadable("annotation-size", "mebibyte-of-hca-names", "longer than", "{devices: ["+
			strings.Repeat("mlx5_0,", mebibyte/7)+"]}"),
		unreadable("annotation-size", "mebibyte-of-brackets", "longer than", strings.Repeat("[", mebibyte)+":"),
		unreadable("annotation-size", "mebibyte-of-space-around-true", "longer than", strings.Repeat(" ", mebibyte/2)+"true"+
			strings.Repeat(" ", mebibyte/2)),
		unreadable("annotation-size", "comment-of-a-mebibyte", "longer than", "{memlock: 1Mi} # "+
			strings.Repeat("x", mebibyte)),
		unreadable("annotation-ascii", "cyrillic-look-alike-of-true", "not printable ASCII", "tru\u0435"),
		unreadable("annotation-ascii", "byte-order-mark", "not printable ASCII", "\ufeff{memlock: 1Mi}"),
		unreadable("annotation-ascii", "utf-16", "not printable ASCII",
			"\xff\xfe{\x00m\x00e\x00m\x00l\x00o\x00c\x00k\x00:\x00 \x001\x00M\x00i\x00}\x00"),
		unreadable("annotation-ascii", "no-break-space-around-true", "not printable ASCII", "\u00a0true\u00a0"),
		unreadable("annotation-ascii", "line-separator-of-unicode", "not printable ASCII", "memlock: 1Mi\u2028"),
		unreadable("yaml-alias", "alias-bomb", "anchors, aliases", bomb+"}"),
		unreadable("yaml-alias", "anchor", "anchors, aliases", "{memlock: &a 1Mi}"),
		unreadable("yaml-alias", "tag", "anchors, aliases", "{memlock: !!str 1Mi}"),
		unreadable("yaml-alias", "merge", "merge", "{<<: {memlock: 1Mi}}"),
		unreadable("yaml-documents", "second-document-unseen", "text after the end of the YAML document", "memlock: "+
			"1Mi\n---\nmemlock: unlimited"),
		unreadable("yaml-documents", "text-after-the-end", "text after the end of the YAML document", "memlock: "+
			"1Mi\n...\ndevices: all"),
		unreadable("yaml-documents", "text-after-the-bracket", "text after the end of the YAML "+
			"document", "{memlock: 1Mi} {devices: all}"),
		unreadable("key-twice", "duplicate-key", "already set", "{memlock: 1Mi, memlock: 2Mi}"),
		unreadable("key-twice", "duplicate-key-in-quotes", "already set", "{memlock: 1Mi, \"memlock\": 2Mi}"),
		unreadable("unknown-key", "key-of-a-rule", "unknown field", "{memlock: 1Mi, management: true}"),
		unreadable("unknown-key", "key-in-capitals", "unknown field", "{MEMLOCK: 1Mi}"),
		unreadable("no-value", "key-without-value", "memlock has no value", "{memlock: }"),
		unreadable("hca-name", "path-for-an-hca", "not a path", "{devices: [../../dev/infiniband/uverbs1]}"),
		unreadable("hca-name", "device-node-for-an-hca", "not a path", "{devices: [/dev/infiniband/umad1]}"),
		unreadable("hca-name", "line-break-in-an-hca", "not a path", "{devices: [\"mlx5_1\\n\"]}"),
		unreadable("hca-name", "nul-in-an-hca", "not a path", "{devices: [\"mlx5_1\\0\"]}"),
		unreadable("unreadable", "deep-nesting", "not YAML", strings.Repeat("[", 500)+":"+strings.Repeat("]", 500)),
		unreadable("unreadable", "nonsense", "cannot parse", "yes please"),
		unreadable("unreadable", "empty", "the value is empty", ""),
		unreadable("unreadable", "comment-alone", "the YAML text contains no values", "# memlock: 1Mi"),
		{guard: "line-ascii", name: "letters-that-are-not-ascii-in-an-error", container: author("? [\"\\u00e9\"]\n: 1"),
			refused: CauseUnreadable, says: `"\u00e9"`},
		{guard: "line-length", name: "error-of-a-mebibyte", refused: CauseKubelet, says: "...",
			container: guest("true").with(func(c *subject) {
				c.Resources = func() ([]string, bool, error) { return nil, false, errors.New(strings.Repeat("x", mebibyte)) }
			})},
		{guard: "quoted-length", name: "namespace-of-a-mebibyte", refused: CauseNamespace, says: "...",
			container: guest("true").with(func(c *subject) {
				c.Namespace = "web-\x1b[31m\n" +
					strings.Repeat("\u202e", mebibyte)
			})},

		// keys: what is written for one container, or looks like it, is not for another
		{guard: "annotation-scope", name: "another-containers-annotation", container: scoped(map[string]string{
			AnnotationKey + "/container.d": "true", AnnotationKey + "/container.": "true", AnnotationKey +
				"/container.C": "true"})},
		{guard: "annotation-scope", name: "container-name-with-a-scope", container: scoped(map[string]string{
			AnnotationKey + "/container.c/pod": "true", AnnotationKey + "/pod/container.c": "true",
			AnnotationKey + "/": "true"})},
		{guard: "annotation-scope", name: "look-alike-of-the-key", container: scoped(map[string]string{
			"rdma.nri.io/pod": "true", "RDMA.noderesource.dev/pod": "true", AnnotationKey + "/pod ": "true", AnnotationKey +
				".evil.example/pod": "true"})},
		{guard: "annotation-scope", name: "both-scopes-at-once", gets: &spec.Grant{Memlock: 64 << 10},
			container: scoped(map[string]string{
				AnnotationKey: "{memlock: unlimited}", AnnotationKey + "/pod": "{devices: all}", AnnotationKey +
					"/container.c": "{memlock: 64Ki, devices: none}"})},
		{guard: "no-signal", name: "annotation-in-another-pod", container: scoped(nil)},
		{guard: "opt-out", name: "opt-out-in-a-listed-namespace", container: author("false")},
		{guard: "opt-out", name: "opt-out-with-a-device", container: guest("false", heldVerbs(1))},
		{guard: "own-annotation", name: "less-for-this-very-container", refused: CauseNamespace,
			container: guest("").with(func(c *subject) {
				c.Annotations = map[string]string{AnnotationKey + "/container.c": "{memlock: 1Mi}"}
			})},
		{guard: "own-annotation-pod", name: "for-this-very-container-of-a-pod-with-rdma", refused: CauseNamespace,
			container: guest("").with(func(c *subject) {
				c.Annotations = map[string]string{AnnotationKey + "/container.c": "true"}
				c.PodHolds = podHolds(allotted("rdma/ib"))
			})},
		{guard: "opt-in", name: "pod-wide-without-rdma", refused: CauseNamespace,
			container: guest("true").with(func(c *subject) { c.PodHolds = podHolds(allotted("nvidia.com/gpu")) })},
		{guard: "opt-in", name: "pod-wide-with-devices-that-are-no-hcas", refused: CauseNamespace,
			container: guest("true").with(func(c *subject) {
				c.PodHolds = podHolds(allotted("openshift.io/nics", "0000:ff:00.0", "uverbs", "", "mlx5_1 "))
			})},
		{guard: "kubelet-pod", name: "pod-wide-while-the-kubelet-is-silent", refused: CauseKubelet,
			container: guest("true").with(func(c *subject) { c.PodHolds = silentOfPods })},
	}
}

// numberAttacks are made with numbers.
func numberAttacks() []attack {
	number := func(guard, name string, cause Cause, says, value string) attack {
		return attack{guard: guard, name: name, container: author("{memlock: " + value + "}"), refused: cause, says: says}
	}
	return []attack{
		number("memlock-ceiling", "unlimited", CauseCeiling, "requests memlock unlimited", "unlimited"),
		number("memlock-ceiling", "one-byte-more", CauseCeiling, "grants at most 1Gi", "1073741825"),
		number("memlock-ceiling", "largest-number", CauseCeiling, "requests memlock unlimited", "18446744073709551615"),
		number("memlock-ceiling", "hexadecimal", CauseCeiling, "grants at most 1Gi", "0x40000001"),
		number("memlock-ceiling", "octal", CauseCeiling, "grants at most 1Gi", "010000000001"),
		number("memlock-ceiling", "exponent", CauseCeiling, "grants at most 1Gi", "1e10"),
		number("memlock-ceiling", "underscores", CauseCeiling, "grants at most 1Gi", "1_073_741_825"),
		number("memlock-ceiling", "memory-limit-above", CauseCeiling, "requests memlock 2Gi", "memory-limit"),
		number("negative-size", "negative", CauseUnreadable, "not positive", "-16Gi"),
		number("negative-size", "negative-one-for-unlimited", CauseUnreadable, "not positive", "-1"),
		number("huge-exponent", "exponent-that-never-ends", CauseUnreadable, "not a size", "'1e-2147483648'"),
		number("huge-exponent", "exponent-that-ends-tomorrow", CauseUnreadable, "not a size", "'9e-999999999'"),
		number("huge-exponent", "exponent-in-a-float", CauseUnreadable, "not a size", "1e2147483646"),
		number("not-yaml", "not-a-number", CauseUnreadable, "unsupported value: NaN", ".nan"),
		number("not-yaml", "infinity", CauseUnreadable, "unsupported value: +Inf", ".inf"),
		number("quantity-length", "number-of-900-digits", CauseUnreadable, "900 characters long", strings.Repeat("9", 900)),
	}
}
