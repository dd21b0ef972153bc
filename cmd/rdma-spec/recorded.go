// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
)

// statusAnswer is the file in a copy of a node that contains what status found on the node.
const statusAnswer = "status.json"

// recordedSurvey is a survey as a copy of a node contains it.
type recordedSurvey struct {
	survey
	Failed int `json:"failed"`
}

// recordStatus returns what status finds; in a copy, what it found on the node.
func (o nodeOptions) recordStatus(surveyed func() (*survey, error)) (doctor.Answer, error) {
	if answer, recorded, err := o.recordedAnswer(); recorded {
		return answer, err
	}
	found, err := surveyed()
	if found.unjudged != nil {
		err = found.unjudged
	}
	if err != nil {
		return doctor.Answer{Error: err.Error()}, nil
	}
	return doctor.AnswerOf(recordedSurvey{*found, found.failed}, nil), nil
}

// recordedStatus returns what status found on the node that the root is a copy of. recorded is false where the root is not a copy of
// rdma-spec collect.
func (o nodeOptions) recordedStatus() (found *survey, recorded bool, err error) {
	answer, recorded, err := o.recordedAnswer()
	switch {
	case !recorded || err != nil:
		return nil, recorded, err
	case answer.Error != "":
		return nil, true, fmt.Errorf("when the node was collected: %s", answer.Error)
	}
	var kept recordedSurvey
	if err := json.Unmarshal(answer.JSON, &kept); err != nil {
		return nil, true, fmt.Errorf("the answer about status in %s: %w", o.root, err)
	}
	kept.failed = kept.Failed
	return &kept.survey, true, nil
}

func (o nodeOptions) recordedAnswer() (answer doctor.Answer, recorded bool, err error) {
	text, err := os.ReadFile(filepath.Join(o.root, doctor.AnswersFolder, statusAnswer))
	if errors.Is(err, fs.ErrNotExist) {
		return answer, false, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &answer)
	}
	if err != nil {
		err = fmt.Errorf("the answer about status in %s: %w", o.root, err)
	}
	return answer, true, err
}

// errCopy means that a command is called on a copy of a node and needs the node.
var errCopy = errors.New("this is a copy of a node: call the command on the node itself")

// ofPods returns the part of a survey that is about pods; all of it where none is named.
func (s *survey) ofPods(pods []string) (*survey, error) {
	if len(pods) == 0 {
		return s, nil
	}
	part := *s
	part.Containers = slices.DeleteFunc(slices.Clone(s.Containers), func(r runningContainer) bool { return !slices.Contains(pods, r.pod()) })
	for _, pod := range pods {
		if !slices.ContainsFunc(part.Containers, func(r runningContainer) bool { return r.pod() == pod }) {
			return nil, fmt.Errorf("no RDMA container of pod %s ran on this node", pod)
		}
	}
	part.failed = 0
	for _, r := range part.Containers {
		if r.State == stateUnknown {
			part.failed++
		}
	}
	return &part, nil
}
