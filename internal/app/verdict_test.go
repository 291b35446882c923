package app

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/reaper"
)

// fill sets every field of a struct to a value that is not zero.
func fill(v reflect.Value) {
	for i := range v.NumField() {
		switch f := v.Field(i); f.Kind() {
		case reflect.Struct:
			if f.Type() == reflect.TypeFor[time.Time]() {
				f.Set(reflect.ValueOf(time.Unix(1_700_000_000+int64(i), 0).UTC()))
				continue
			}
			fill(f)
		case reflect.Int64:
			f.SetInt(int64(i + 1))
		case reflect.Bool:
			f.SetBool(true)
		case reflect.String:
			f.SetString(string(rune('a' + i)))
		}
	}
}

// The API shows a verdict as the log does, to the byte: in an answer of the API and in a
// log line, people look for the same keys.
func TestVerdictOfTheAPI(t *testing.T) {
	var full reaper.Verdict
	fill(reflect.ValueOf(&full).Elem())
	for _, v := range []reaper.Verdict{full, {}} {
		want, err := json.Marshal(v)
		require.NoError(t, err)
		got, err := json.Marshal(apiVerdict(v))
		require.NoError(t, err)
		require.Equal(t, string(want), string(got))
	}
}
