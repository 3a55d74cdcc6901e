// A Kinesis server on loopback: kinesalite, with its differences from Kinesis corrected, and with controls for tests.
//
// usage: node kinesalite.js DIRECTORY PORT, where DIRECTORY/node_modules has kinesalite
//
// GET  /control/clock?hours=25         sets the server's clock, relative to the real one, so that records expire
// GET  /control/throttle?GetRecords=3 refuses the next three requests of this name
// GET  /control/requests              returns the number of answered requests by name since the last call
'use strict'
const path = require('path')
const modules = path.join(process.argv[2], 'node_modules', 'kinesalite')
const db = require(path.join(modules, 'db'))
const crypto = require('crypto')

let ahead = 0
const realNow = Date.now
Date.now = () => realNow() + ahead

function replace(action, change) {
  const file = require.resolve(path.join(modules, 'actions', action))
  const original = require(file)
  require.cache[file].exports = (store, data, cb) => change(original, store, data, cb)
}

function items(store, stream, shard, cb) {
  const found = []
  const shardIx = db.resolveShardId(shard).shardIx
  const cut = Date.now() - stream.RetentionPeriodHours * 3600 * 1000
  store.getStreamDb(stream.StreamName)
    .createReadStream({gt: db.shardIxToHex(shardIx), lt: db.shardIxToHex(shardIx + 1)})
    .on('data', item => {
      const number = item.key.split('/')[1]
      if (db.parseSequence(number).seqTime >= cut) found.push({number: BigInt(number), at: item.value.ApproximateArrivalTimestamp})
    })
    .on('end', () => cb(found))
}

// kinesalite never answers a request for a time after the newest record.
replace('getShardIterator', (original, store, data, cb) => {
  if (data.ShardIteratorType != 'AT_TIMESTAMP') return original(store, data, cb)
  store.getStream(data.StreamName, (error, stream) => {
    if (error) return cb(error)
    items(store, stream, data.ShardId, found => {
      const first = found.find(item => item.at >= data.Timestamp)
      const given = {StreamName: data.StreamName, ShardId: data.ShardId}
      const position = first ? {ShardIteratorType: 'AT_SEQUENCE_NUMBER', StartingSequenceNumber: first.number.toString()}
        : {ShardIteratorType: 'LATEST'}
      original(store, {...given, ...position}, cb)
    })
  })
})

// kinesalite reports MillisBehindLatest 0 for every page.
replace('getRecords', (original, store, data, cb) => {
  original(store, data, (error, page) => {
    if (error || !page.NextShardIterator) return cb(error, page)
    const decipher = crypto.createDecipheriv('aes-256-cbc', db.ITERATOR_PWD_KEY, db.ITERATOR_PWD_IV)
    const next = Buffer.from(page.NextShardIterator, 'base64').subarray(8)
    const [, name, shard, number] = Buffer.concat([decipher.update(next), decipher.final()]).toString().split('/')
    store.getStream(name, (missing, stream) => {
      if (missing) return cb(missing)
      items(store, stream, shard, found => {
        const unread = found.find(item => item.number >= BigInt(number))
        page.MillisBehindLatest = unread ? Math.max(1, Math.round(Date.now() - unread.at * 1000)) : 0
        cb(null, page)
      })
    })
  })
})

const server = require(modules)({createStreamMs: 5, deleteStreamMs: 5, updateStreamMs: 5, shardLimit: 1000})
const [answer] = server.listeners('request')
const throttled = {}
let requests = {}

function control(url) {
  const given = Object.fromEntries(url.searchParams)
  if (url.pathname == '/control/clock') ahead = given.hours * 3600 * 1000
  if (url.pathname == '/control/throttle') for (const name in given) throttled[name] = +given[name]
  const counted = requests
  if (url.pathname == '/control/requests') requests = {}
  return counted
}

server.removeAllListeners('request')
server.on('request', (request, response) => {
  if (request.url.startsWith('/control/')) return response.end(JSON.stringify(control(new URL(request.url, 'http://localhost'))))
  const name = (request.headers['x-amz-target'] || '').split('.')[1]
  if (throttled[name] > 0) {
    throttled[name] -= 1
    request.resume()
    response.writeHead(400, {'Content-Type': 'application/x-amz-json-1.1'})
    return response.end(JSON.stringify({__type: 'ProvisionedThroughputExceededException', message: 'Rate exceeded for shard'}))
  }
  requests[name] = (requests[name] || 0) + 1
  answer(request, response)
})
server.listen(+process.argv[3], '127.0.0.1')
