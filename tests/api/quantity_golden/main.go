// Command quantity_golden reads {"texts": [...], "pairs": [[a, b], ...]} and writes what Kubernetes makes of them.
// make.py calls it.
package main

import (
	"encoding/json"
	"os"

	"k8s.io/apimachinery/pkg/api/resource"
)

type question struct {
	Texts []string    `json:"texts"`
	Pairs [][2]string `json:"pairs"`
}

type amount struct {
	Text      string `json:"text"`
	Error     bool   `json:"error,omitempty"`
	Canonical string `json:"canonical,omitempty"`
	Decimal   string `json:"decimal,omitempty"`
	Milli     int64  `json:"milli,omitempty"`
	Units     int64  `json:"units,omitempty"`
	Mega      int64  `json:"mega,omitempty"`
}

type sum struct {
	A   string `json:"a"`
	B   string `json:"b"`
	Sum string `json:"sum"`
}

func canonical(q resource.Quantity) string {
	number, suffix := q.CanonicalizeBytes(nil)
	return string(number) + string(suffix)
}

func main() {
	var asked question
	if err := json.NewDecoder(os.Stdin).Decode(&asked); err != nil {
		panic(err)
	}
	answer := struct {
		Amounts []amount `json:"amounts"`
		Sums    []sum    `json:"sums"`
	}{}
	for _, text := range asked.Texts {
		q, err := resource.ParseQuantity(text)
		if err != nil {
			answer.Amounts = append(answer.Amounts, amount{Text: text, Error: true})
			continue
		}
		answer.Amounts = append(answer.Amounts, amount{
			Text: text, Canonical: canonical(q), Milli: q.ScaledValue(resource.Milli),
			Units: q.ScaledValue(0), Mega: q.ScaledValue(resource.Mega), Decimal: q.AsDec().String(),
		})
	}
	for _, pair := range asked.Pairs {
		a, b := resource.MustParse(pair[0]), resource.MustParse(pair[1])
		a.Add(b)
		answer.Sums = append(answer.Sums, sum{A: pair[0], B: pair[1], Sum: canonical(a)})
	}
	if err := json.NewEncoder(os.Stdout).Encode(answer); err != nil {
		panic(err)
	}
}
