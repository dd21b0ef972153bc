// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/rdma-spec/rdma-spec/test/testing/repository"
)

// longestSubject is the largest number of characters in the subject of a commit.
const longestSubject = 69

// lastFree is the last commit before this rule was introduced.
const lastFree = "20b163be6c9567b892ad0cfc8cd49517e97ad090"

// TestSubjectsOfCommits checks the length of each subject since lastFree. It ignores merges, whose subjects the forge
// writes, and commits by bots.
func TestSubjectsOfCommits(t *testing.T) {
	// go test repeats a test if a file that the test opened has changed. This file changes with each commit.
	if changes, err := git(t, "rev-parse", "--git-path", "logs/HEAD"); err == nil {
		_, _ = os.ReadFile(repository.Path(t, changes))
	}
	if _, err := git(t, "merge-base", "--is-ancestor", lastFree, "HEAD"); err != nil {
		t.Skipf("no history since %.8s here, as in a shallow clone or an archive: %v", lastFree, err)
	}
	commits, err := git(t, "log", "--no-merges", "--format=%h\t%an\t%s", lastFree+"..HEAD")
	if err != nil {
		t.Fatal(err)
	}
	for _, problem := range longSubjects(commits) {
		t.Error(problem)
	}
}

// longSubjects returns an error for each commit whose subject is too long. Each line contains a commit's hash, author,
// and subject.
func longSubjects(commits string) (problems []string) {
	for line := range strings.Lines(commits) {
		hash, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		author, subject, _ := strings.Cut(rest, "\t")
		if strings.HasSuffix(author, "[bot]") || utf8.RuneCountInString(subject) <= longestSubject {
			continue
		}
		problems = append(problems, "commit "+hash+": its subject has 70 characters or more; "+
			"shorten it with git commit --amend, or git rebase -i: "+subject)
	}
	return problems
}

func TestLongSubjects(t *testing.T) {
	long := strings.Repeat("ü", longestSubject)
	for commits, want := range map[string]int{
		"":                                   0,
		"1\tA\t" + long + "\n":               0,
		"1\tA\t" + long + "!\n2\tB\tShort\n": 1,
		"1\tdependabot[bot]\t" + long + "!":  0,
	} {
		if got := longSubjects(commits); len(got) != want {
			t.Errorf("%q: %q, want %d", commits, got, want)
		}
	}
}

func git(t *testing.T, args ...string) (string, error) {
	t.Helper()
	command := exec.Command("git", args...)
	command.Dir = repository.Path(t, ".")
	out, err := command.Output()
	return strings.TrimSuffix(string(out), "\n"), err
}
