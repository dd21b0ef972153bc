// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"encoding/json"
	"math"
	"strings"
	"testing"

	"github.com/rdma-spec/rdma-spec/test/testing/await"
	"github.com/rdma-spec/rdma-spec/test/testing/expect"
)

func TestParseLimit(t *testing.T) {
	for text, want := range map[string]Limit{
		"unlimited":            Unlimited,
		"1":                    1,
		"65536":                64 << 10,
		"007":                  7,
		"500M":                 500e6,
		"16Gi":                 16 << 30,
		"0.5Gi":                512 << 20,
		"1.5k":                 1500,
		"1e3":                  1000,
		"1E":                   1e18,
		"1000m":                1,
		"7Ei":                  7 << 60,
		"9223372036854775806":  math.MaxInt64 - 1,
		"9223372036854775807":  Unlimited, // written by programs that have no larger number
		"9223372036854775808":  Unlimited,
		"18446744073709551614": Unlimited,
		"18446744073709551615": Unlimited,
	} {
		if got, err := ParseLimit(text); err != nil || got != want {
			t.Errorf("ParseLimit(%q) = %d, %v; want %d", text, got, err, want)
		}
	}
}

func TestParseLimitRefuses(t *testing.T) {
	const remedy = ": write unlimited, or a size such as 16Gi or 500M"
	for text, want := range map[string]string{
		"":                             `memlock "" is not a size`,
		"lots":                         `memlock "lots" is not a size`,
		"Unlimited":                    `memlock "Unlimited" is not a size`,
		"16GB":                         `memlock "16GB" is not a size`,
		"1 Gi":                         `memlock "1 Gi" is not a size`,
		"1Gi\n":                        `memlock "1Gi\n" is not a size`,
		"0x10":                         `memlock "0x10" is not a size`,
		"0":                            `memlock "0" is not positive`,
		"0Gi":                          `memlock "0Gi" is not positive`,
		"-1":                           `memlock "-1" is not positive`,
		"-16Gi":                        `memlock "-16Gi" is not positive`,
		"1.5":                          `memlock "1.5" is not a whole number of bytes`,
		"100m":                         `memlock "100m" is not a whole number of bytes`,
		"1e-2":                         `memlock "1e-2" is not a whole number of bytes`,
		"8Ei":                          `memlock "8Ei" is too large (8Ei or more)`,
		"18446744073709551616":         `memlock "18446744073709551616" is too large (8Ei or more)`,
		"1e99":                         `memlock "1e99" is too large (8Ei or more)`,
		strings.Repeat("1", 32):        `memlock "11111111111111111111111111111111" is too large (8Ei or more)`,
		strings.Repeat("1", 33):        `memlock is 33 characters long`,
		strings.Repeat("9", 1<<20):     `memlock is 1048576 characters long`,
		"1." + strings.Repeat("0", 31): `memlock is 33 characters long`,
	} {
		got, err := ParseLimit(text)
		if err == nil {
			t.Errorf("ParseLimit(%q) = %d; want an error", text, got)
		} else if err.Error() != want+remedy {
			t.Errorf("ParseLimit(%q): %v; want %s", text, err, want+remedy)
		}
	}
}

// ParseLimit parses text from containers' annotations, so no text may keep the plugin busy.
func TestParseLimitRefusesHugeExponents(t *testing.T) {
	for _, text := range []string{"1e99999999", "1e-99999999", "1E+99999999", "-1e-99999999",
		".1e999999999999999", "1e003"} {
		done := make(chan error, 1)
		go func() {
			_, err := ParseLimit(text)
			done <- err
		}()
		err := await.Receive(t, await.Timeout, "the end of ParseLimit of "+text, done)
		if err == nil || !strings.HasPrefix(err.Error(), `memlock "`+text+`" is not a size`) {
			t.Errorf("ParseLimit(%q): %v", text, err)
		}
	}
}

func TestLimitString(t *testing.T) {
	for limit, want := range map[Limit]string{
		1:                 "1",
		65536:             "64Ki",
		65537:             "65537",
		8 << 20:           "8Mi",
		500e6:             "500000000",
		16 << 30:          "16Gi",
		math.MaxInt64 - 1: "9223372036854775806",
		Unlimited:         "unlimited",
	} {
		if got := limit.String(); got != want {
			t.Errorf("Limit(%d).String() = %q, want %q", uint64(limit), got, want)
		}
		if finite := limit != Unlimited; limit.Finite() != finite {
			t.Errorf("Limit(%d).Finite() = %v", uint64(limit), !finite)
		}
		if text, err := json.Marshal(limit); err != nil || string(text) != `"`+want+`"` {
			t.Errorf("json.Marshal(Limit(%d)) = %s, %v; want %q", uint64(limit), text, err, want)
		}
	}
}

// 2^63-1, which generate writes for nodeadm and Talos, means unlimited wherever a limit is read.
func TestLimit_largestSignedNumber(t *testing.T) {
	const text = `{"process":{"rlimits":[{"type":"RLIMIT_MEMLOCK","hard":9223372036854775807,"soft":9223372036854775807}]}}`
	if limit, known, err := Memlock([]byte(text)); limit != (Rlimit{Unlimited, Unlimited}) || !known || err != nil {
		t.Errorf("a spec's memlock is %v, %t, %v", limit, known, err)
	}
	if after, err := (Grant{Memlock: Unlimited}).Apply([]byte(text), AllSets); string(after) != text || err != nil {
		t.Errorf("a spec that has it becomes %s, %v", after, err)
	}
	for _, words := range []string{`"9223372036854775807"`, `"unlimited"`} {
		var limit Limit
		if err := json.Unmarshal([]byte(words), &limit); limit != Unlimited || err != nil {
			t.Errorf("%s is %d, %v", words, limit, err)
		}
	}
}

func TestRaise(t *testing.T) {
	for name, test := range map[string]struct {
		current Rlimit
		want    Limit
		raised  Rlimit
		changed bool
	}{
		"nothing there":                {Rlimit{}, 5, Rlimit{5, 5}, true},
		"both below":                   {Rlimit{1, 2}, 5, Rlimit{5, 5}, true},
		"hard above is not lowered":    {Rlimit{1, 9}, 5, Rlimit{5, 9}, true},
		"hard suffices":                {Rlimit{1, 5}, 5, Rlimit{5, 5}, true},
		"soft suffices exactly":        {Rlimit{5, 5}, 5, Rlimit{5, 5}, false},
		"soft above is not lowered":    {Rlimit{7, 9}, 5, Rlimit{7, 9}, false},
		"unlimited is not lowered":     {Rlimit{Unlimited, Unlimited}, 5, Rlimit{Unlimited, Unlimited}, false},
		"unlimited asked, one less":    {Rlimit{Unlimited - 1, Unlimited}, Unlimited, Rlimit{Unlimited, Unlimited}, true},
		"unlimited asked, is there":    {Rlimit{Unlimited, Unlimited}, Unlimited, Rlimit{Unlimited, Unlimited}, false},
		"nothing asked, nothing there": {Rlimit{}, 0, Rlimit{}, false},
	} {
		t.Run(name, func(t *testing.T) {
			raised, changed := test.current.Raise(test.want)
			if raised != test.raised || changed != test.changed {
				t.Errorf("%v.Raise(%v) = %v, %v; want %v, %v", test.current, test.want, raised, changed, test.raised, test.changed)
			}
		})
	}
}

// FuzzParseLimit: each accepted limit is above zero, and its text parses to the same limit.
func FuzzParseLimit(f *testing.F) {
	for _, seed := range []string{
		"unlimited", "16Gi", "0.5Gi", "500M", "65537", "9223372036854775807", "18446744073709551615", "8Ei",
		"1e3", "1e99", "1e-999",
		"-1", "0", "1.5", "1n", "+5", ".5Ki", "5.", "1e+3", "١٦Gi", "1_000", "0b1", "16gi", "\x00", "",
		"10000000000000000000", strings.Repeat("0", maxQuantityLength+1),
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		limit, err := ParseLimit(text)
		if err != nil {
			if limit != 0 || strings.ContainsAny(err.Error(), "\n\r") || !strings.Contains(err.Error(),
				"write unlimited, or a size") {
				t.Errorf("ParseLimit(%q) = %d, %q: no clear refusal", text, limit, err)
			}
			return
		}
		if limit == 0 {
			t.Errorf("ParseLimit(%q) = 0", text)
		}
		if again, err := ParseLimit(limit.String()); err != nil || again != limit {
			t.Errorf("ParseLimit(%q) = %d, which is called %s, and that is read as %d, %v", text, limit, limit, again, err)
		}
	})
}

func TestMemlockIsSet(t *testing.T) {
	const max = "18446744073709551615"
	for name, test := range map[string]struct {
		grant         Limit
		rlimits, want string
	}{
		"added behind the others": {
			64 << 20,
			`[{"type":"RLIMIT_NOFILE","hard":9,"soft":9}]`,
			`[{"type":"RLIMIT_NOFILE","hard":9,"soft":9},{"type":"RLIMIT_MEMLOCK","hard":67108864,"soft":67108864}]`,
		},
		"raised in its place": {
			Unlimited,
			`[{"type":"RLIMIT_MEMLOCK","hard":65536,"soft":65536},{"type":"RLIMIT_NOFILE","hard":9,"soft":9}]`,
			`[{"type":"RLIMIT_MEMLOCK","hard":` + max + `,"soft":` + max + `},{"type":"RLIMIT_NOFILE","hard":9,"soft":9}]`,
		},
		"a higher one is not lowered": {
			64 << 20,
			`[{"type":"RLIMIT_MEMLOCK","hard":` + max + `,"soft":67108865}]`,
			`[{"type":"RLIMIT_MEMLOCK","hard":` + max + `,"soft":67108865}]`,
		},
		"a higher hard one is not lowered": {
			64 << 20,
			`[{"type":"RLIMIT_MEMLOCK","hard":` + max + `,"soft":1}]`,
			`[{"type":"RLIMIT_MEMLOCK","hard":` + max + `,"soft":67108864}]`,
		},
		"once, though it stood there twice": {
			64 << 20,
			`[{"type":"RLIMIT_MEMLOCK","hard":1,"soft":1},{"type":"RLIMIT_NOFILE","hard":9,"soft":9},{"type":"RLIMIT_MEMLOCK","hard":2,"soft":2}]`,
			`[{"type":"RLIMIT_MEMLOCK","hard":67108864,"soft":67108864},{"type":"RLIMIT_NOFILE","hard":9,"soft":9}]`,
		},
		"once, though both suffice": {
			1,
			`[{"type":"RLIMIT_MEMLOCK","hard":5,"soft":3},{"type":"RLIMIT_MEMLOCK","hard":4,"soft":4}]`,
			`[{"type":"RLIMIT_MEMLOCK","hard":5,"soft":4}]`,
		},
		"of two, the higher one is not lowered": {
			64 << 20,
			`[{"type":"RLIMIT_MEMLOCK","hard":` + max + `,"soft":` + max + `},{"type":"RLIMIT_MEMLOCK","hard":1,"soft":1}]`,
			`[{"type":"RLIMIT_MEMLOCK","hard":` + max + `,"soft":` + max + `}]`,
		},
		"another spelling is another limit": { // runc and crun refuse this spelling, so it is not changed
			1,
			`[{"type":"rlimit_memlock","hard":5,"soft":5}]`,
			`[{"type":"rlimit_memlock","hard":5,"soft":5},{"type":"RLIMIT_MEMLOCK","hard":1,"soft":1}]`,
		},
		"what an entry says besides is kept": {
			2,
			`[{"why":"<1e400>","n":1e400,"type":"RLIMIT_MEMLOCK","soft":1}]`,
			`[{"why":"<1e400>","n":1e400,"type":"RLIMIT_MEMLOCK","soft":2,"hard":2}]`,
		},
		"without soft and hard": {
			2,
			`[{"type":"RLIMIT_MEMLOCK","soft":null}]`,
			`[{"type":"RLIMIT_MEMLOCK","soft":2,"hard":2}]`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := mustApply(t, Grant{Memlock: test.grant}, `{"process":{"rlimits":`+test.rlimits+`}}`, nil)
			expect.Equal(t, "Apply", `{"process":{"rlimits":`+test.want+`}}`, got)
		})
	}
}
