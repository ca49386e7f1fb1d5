// Registers, looks up, checks and deletes with the registry client of franz-go: go run . ADDRESS SECRET SUBJECT
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"

	"github.com/twmb/franz-go/pkg/sr"
)

func must[T any](value T, err error) T {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return value
}

func main() {
	address, secret, subject := os.Args[1], os.Args[2], os.Args[3]
	client := must(sr.NewClient(sr.URLs(address), sr.BasicAuth("admin", secret)))
	ctx := context.Background()

	one := sr.Schema{Schema: `{"type":"record","name":"User","namespace":"golang","fields":[{"name":"id","type":"long"}]}`}
	two := sr.Schema{Schema: `{"type":"record","name":"User","namespace":"golang","fields":[{"name":"id","type":"long"},{"name":"name","type":"string","default":""}]}`}
	wrong := sr.Schema{Schema: `{"type":"record","name":"User","namespace":"golang","fields":[{"name":"id","type":"string"}]}`}

	first := must(client.CreateSchema(ctx, subject, one))
	second := must(client.CreateSchema(ctx, subject, two))
	looked := must(client.LookupSchema(ctx, subject, one))
	compatible := must(client.CheckCompatibility(ctx, subject, -1, wrong))
	levels := client.SetCompatibility(ctx, sr.SetCompatibility{Level: sr.CompatFull}, subject)
	must(levels[0].Level, levels[0].Err)
	types := must(client.SupportedTypes(ctx))
	deleted := must(client.DeleteSubject(ctx, subject, sr.SoftDelete))
	gone := must(client.Subjects(sr.WithParams(ctx, sr.ShowDeleted)))
	hard := must(client.DeleteSubject(ctx, subject, sr.HardDelete))
	_, refused := client.SubjectVersions(ctx, subject)

	_ = json.NewEncoder(os.Stdout).Encode(map[string]any{
		"versions":   []int{first.Version, second.Version},
		"same_id":    looked.ID == first.ID && looked.Version == 1,
		"compatible": compatible.Is,
		"level":      levels[0].Level.String(),
		"types":      len(types),
		"deleted":    [][]int{deleted, hard},
		"listed":     len(gone) > 0,
		"refused":    refused != nil,
	})
}
