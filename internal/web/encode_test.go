package web

import (
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
)

// slowly takes a second to be encoded.
type slowly struct{}

func (slowly) MarshalJSON() ([]byte, error) {
	<-time.After(time.Second)
	return []byte(`"\u003c"`), nil
}

// Answers are encoded one after the other, since each takes memory.
func TestAnswersAreEncodedInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		served, err := New(Options{Source: &source{}, Events: stoppedHub(t), Logger: (&etcdtest.Log{}).Logger()})
		require.NoError(t, err)
		start := time.Now()
		var all sync.WaitGroup
		for range 3 {
			all.Go(func() {
				w := httptest.NewRecorder()
				served.(*handler).send(w, nil, http.StatusOK, slowly{})
				require.Equal(t, `"\u003c"`+"\n", w.Body.String())
			})
		}
		all.Wait()
		require.Equal(t, 3*time.Second, time.Since(start))
	})
}
