// A Pub/Sub server in memory, for tests: Google's pstest, listening on the address of the first argument.
package main

import (
	"log"
	"net"
	"os"
	"os/signal"
	"strconv"
	"syscall"

	"cloud.google.com/go/pubsub/v2/pstest"
)

func main() {
	_, text, err := net.SplitHostPort(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	port, err := strconv.Atoi(text)
	if err != nil {
		log.Fatal(err)
	}
	server := pstest.NewServerWithPort(port)
	defer server.Close()
	log.Printf("listening on %s", server.Addr)
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, os.Interrupt, syscall.SIGTERM)
	<-stop
}
