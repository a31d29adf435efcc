// Loaded into an emulator before its own first line (node --require). Three things no emulator here offers together:
// it listens on a free port of 127.0.0.1 whatever address it was written for, its clock can be moved forward, and it
// ends with the process that started it. Told by lines on standard input and told back by lines on standard output.

'use strict'

const net = require('net')
const readline = require('readline')

const say = (...words) => process.stdout.write(`\nconformance ${words.join(' ')}\n`)

const listen = net.Server.prototype.listen
net.Server.prototype.listen = function (...given) {
  const done = given.find((argument) => typeof argument === 'function')
  const wanted = typeof given[0] === 'object' ? given[0].port : given[0]
  this.once('listening', () => say('listening', wanted, this.address().port))
  return listen.call(this, { host: '127.0.0.1', port: 0 }, done)
}

const RealDate = Date
let ahead = 0
global.Date = class Date extends RealDate {
  constructor (...given) {
    super(...(given.length ? given : [RealDate.now() + ahead]))
  }

  static now () {
    return RealDate.now() + ahead
  }
}

const origin = performance.timeOrigin
Object.defineProperty(performance, 'timeOrigin', { get: () => origin + ahead })

const input = readline.createInterface({ input: process.stdin })
input.on('line', (line) => {
  ahead += Number(line)
  say('ahead', ahead)
})
// An orderly end would wait for the connections of clients; there is nothing here to keep.
input.on('close', () => process.kill(process.pid, 'SIGKILL'))
